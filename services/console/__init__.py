"""The screens for people: the read model (`board/`), `weir top`, the page, the report, `weir
why`.
"""
