"""The errors that stop a command, with a text that a user can act on; the exit codes."""

from __future__ import annotations

DONE = 0
FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

CODES = {
    DONE: "done",
    FAILED: "failed",
    WRONG_USE: "usage error",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "output closed",
}
"""The exit codes of every command of `weir`; `weir --help` shows them. The last two are 128 and the
signal's number.
"""


class Trouble(Exception):
    """An error that ends a command. Its text is all that is shown; `code` is the exit code."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code
