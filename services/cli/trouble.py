"""What stops a command, in the words that a person can act on."""

from __future__ import annotations

DONE, FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


class Trouble(Exception):
    """Its text is all that is shown; `code` is how the command ends."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code
