"""What people look at: the read model (`board/`), `weir top`, the page, the report, `weir why`."""
