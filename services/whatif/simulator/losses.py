"""The true learning of a model: the loss by samples, between the points of a measured curve."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

Point = tuple[float, float]
"""A number of samples, and the loss after them."""


class Curve:
    """Linear between the points, flat outside them."""

    def __init__(self, points: Iterable[Point]) -> None:
        """Raises `ValueError` if there are no points."""
        self.points = sorted(points)
        if not self.points:
            raise ValueError("a loss curve needs a point")

    def at(self, samples: float) -> float:
        """Return the loss after so many samples."""
        behind = bisect_right(self.points, samples, key=lambda point: point[0])
        if behind == 0:
            return self.points[0][1]
        if behind == len(self.points):
            return self.points[-1][1]
        from_x, from_y = self.points[behind - 1]
        to_x, to_y = self.points[behind]
        rise = to_y - from_y
        return from_y + rise * (samples - from_x) / (to_x - from_x)


class Reason(msgspec.Struct, frozen=True, order=True):
    """A reason against a file: the line, and the fault there."""

    line: int
    said: str


class Bad(ValueError):
    """A file that cannot be used; its text has a line for each reason."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(sorted(reasons))
        texts = [f"line {reason.line}{reason.said}" for reason in self.reasons]
        super().__init__("\n".join(texts))
