"""Where a person looks: a console that leaves a closed pipe to the command, as plain `print` does."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
