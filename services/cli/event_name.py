"""The short name by which one stored message is asked for: its stream's letter, and its number
there. Pure.

`o12` is number 12 of the orders, `f345` of the facts, `d3` of the dead letters.
"""

from __future__ import annotations

import re

from services.cli.entry import Entry
from shared.bus.subjects import DEAD, FACTS, ORDERS

LETTERS = {"o": ORDERS, "f": FACTS, "d": DEAD}
OF_STREAM = {stream: letter for letter, stream in LETTERS.items()}
LONGEST_NUMBER = 18  # digits: what fits into the server's number


def name_of(entry: Entry) -> str:
    return f"{OF_STREAM[entry.stream]}{entry.sequence}"


def place_of(text: str) -> tuple[str, int] | None:
    """Stream and number; None where this is no such name."""
    found = re.fullmatch(rf"([{''.join(LETTERS)}])([1-9]\d{{0,{LONGEST_NUMBER - 1}}})", text)
    return (LETTERS[found[1]], int(found[2])) if found else None
