"""Where a person looks: a console that leaves a closed pipe to the command, as plain `print` does.

What is no terminal has lines without an end, one a row, for whoever cuts and counts them.
"""

from __future__ import annotations

import sys

from rich.console import Console, RenderableType

from services.console.text.cells import ENDLESS


class Terminal(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def put(self, drawn: RenderableType) -> None:
        """Without the blanks that only fill the last column."""
        with self.capture() as captured:
            self.print(drawn)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def table_console() -> Terminal:
    """As wide as it is."""
    return Terminal(width=None if sys.stdout.isatty() else ENDLESS)
