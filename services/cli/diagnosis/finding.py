"""One thing that is told of a program."""

from __future__ import annotations

from typing import Literal

import msgspec

Weight = Literal["fine", "advice", "wrong"]
"""`wrong`: the job would fail, or train something else than it seems to; `advice`: it would be
slower, or larger.
"""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: whatever helps to find the place, a traceback say. `remedy`: what to do; empty for
    what is fine.
    """

    weight: Weight
    what: str
    remedy: str = ""
    more: str = ""


def fine(what: str) -> Finding:
    return Finding(weight="fine", what=what)


def advice(what: str, remedy: str) -> Finding:
    return Finding(weight="advice", what=what, remedy=remedy)


def wrong(what: str, remedy: str, more: str = "") -> Finding:
    return Finding(weight="wrong", what=what, remedy=remedy, more=more)


def size(count: float) -> str:
    """Bytes, in the largest unit that leaves a whole number in front: `332 kB`, `1.38 GB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"
