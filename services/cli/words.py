"""Words on the command line: names and durations. How counts, times and foreign text are told:
`shared/text.py`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Generic, TypeVar

from services.allocator.admission.validation import NAME
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.messages import DNS_LABEL

SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
LONGEST_NAME = 63
T = TypeVar("T")


class Word(Generic[T]):
    """How an argument is read. `offers`: what a shell completes it to; or whose names it `asks` the
    bus for.
    """

    def __init__(
        self, read: Callable[[str], T], offers: tuple[str, ...] = (), asks: str = ""
    ) -> None:
        self.read = read
        self.offers = offers
        self.asks = asks

    def __call__(self, text: str) -> T:
        return self.read(text)


def is_name(text: object) -> bool:
    """A DNS label: what may stand as one token of a subject."""
    return (
        isinstance(text, str) and len(text) <= LONGEST_NAME and bool(re.fullmatch(DNS_LABEL, text))
    )


def name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {NAME}, at most {LONGEST_NAME} characters"
        )
    return text


job_name, namespace_name = Word(name, asks="jobs"), Word(name, asks="namespaces")


def duration(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `2h` or `1.5d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 10m, 2h or 1d")
    return float(found[1]) * SECONDS[found[2] or "s"]


def namespace_argument(
    parser: argparse.ArgumentParser, default: str | None = DEFAULT_NAMESPACE
) -> None:
    said = f"the job's namespace (default: {default or 'all'})"
    parser.add_argument(
        "-n", "--namespace", type=namespace_name, default=default, metavar="NS", help=said
    )
