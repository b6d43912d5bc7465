"""The faults of a file that a person wrote, by line: scenarios, CSV files and exported logs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class FileError(msgspec.Struct, frozen=True, order=True):
    """A reason against a file: the line, and the fault there."""

    line: int
    said: str


class InvalidFile(ValueError):
    """A file that cannot be used; its text has a line for each reason."""

    def __init__(self, reasons: Iterable[FileError]) -> None:
        self.reasons = tuple(sorted(reasons))
        texts = [f"line {reason.line}{reason.said}" for reason in self.reasons]
        super().__init__("\n".join(texts))
