"""The console that a command prints to. Like `print`, it raises an error when the pipe is closed.

Without a terminal, lines have no maximum width, so that other programs can cut and count them.
"""

from __future__ import annotations

import sys

from rich.console import Console, RenderableType

from services.console.text.cells import ENDLESS


class Terminal(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def put(self, drawn: RenderableType) -> None:
        """Print without the blanks at the ends of lines."""
        with self.capture() as captured:
            self.print(drawn)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def table_console() -> Terminal:
    """Return a console as wide as the terminal; without a width limit if there is no terminal."""
    return Terminal(width=None if sys.stdout.isatty() else ENDLESS)
