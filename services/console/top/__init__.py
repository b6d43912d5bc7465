"""The drawing of `weir top`, from a board, a time and a size.

Law: every number is the board's (`services/console/board/`); only widths are computed here. A job
has a letter beside its colour, so that nobody needs to distinguish colours; the colours are those
of Okabe and Ito.

Read first: `screen.py`.
"""
