"""Which checkpoints stay: the newest few that the ledger has named, and what may be named yet; all
else goes. Pure.

What is later than the newest that is named may be under way. Of what is earlier, whatever is not
named never will be: it was named once, or given up half-written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

GENERATION = re.compile(r"gen-(\d+)")
FILE = re.compile(r"ckpt-(\d+)(?:_temp|\..+)")
PATH = re.compile(r"gen-(\d+)/ckpt-(\d+)$")
Age = tuple[int, int]
"""Generation and step: the later of two checkpoints is the greater."""


def generation(folder: str) -> int | None:
    """Of a folder's name; None where it is none of ours."""
    found = GENERATION.fullmatch(folder)
    return int(found[1]) if found else None


def goes(number: int, name: str, kept: Sequence[str]) -> bool:
    """Whether a file of this generation goes, when `kept` are the paths that the ledger names."""
    found, ages = FILE.fullmatch(name), _ages(kept)
    if found is None or not ages:
        return False
    age = (number, int(found[1]))
    return age < max(ages) and age not in ages


def over(number: int, kept: Sequence[str]) -> bool:
    """Whether nobody writes into this generation's folder any more."""
    ages = _ages(kept)
    return bool(ages) and number < max(ages)[0]


def age(path: str) -> Age | None:
    """Return the age of a checkpoint; None for a path that is not one."""
    found = PATH.search(path)
    return (int(found[1]), int(found[2])) if found else None


def _ages(kept: Sequence[str]) -> set[Age]:
    return {found for path in kept if (found := age(path)) is not None}
