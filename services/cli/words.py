"""Words on the command line, and words on the terminal: names, durations, one clean line of foreign text."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from services.allocator.requests.wording import NAME
from shared.messages import DNS_LABEL

SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
LONGEST_NAME = 63
DEFAULT_NAMESPACE = "default"


def is_name(text: object) -> bool:
    """A DNS label: what may stand as one token of a subject."""
    return isinstance(text, str) and len(text) <= LONGEST_NAME and bool(re.fullmatch(DNS_LABEL, text))


def name(text: str) -> str:
    if not is_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {NAME}, at most {LONGEST_NAME} characters")
    return text


def duration(text: str) -> float:
    """Seconds in `90`, `90s`, `10m`, `2h` or `1.5d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 10m, 2h or 1d")
    return float(found[1]) * SECONDS[found[2] or "s"]


def lasting(seconds: float) -> str:
    """So long, in the two largest units that count: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def plain(text: str) -> str:
    """One line without control characters, whoever wrote it: a terminal obeys those."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def headline(text: str) -> str:
    """What can be read alone of a cause: its first line, but of a bare traceback the last."""
    first = next((line for line in map(plain, text.splitlines()) if line), "")
    return last_line(text) if first.startswith("Traceback") else first


def evaluated(metrics: Mapping[str, float]) -> list[str]:
    """What a program's `evaluation()` said at the end, named as such: the loss of training is another number."""
    told = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    return [f"evaluation: {told}"] if told else []


def last_line(text: str) -> str:
    """What a traceback says in the end."""
    lines = [line for line in map(plain, text.splitlines()) if line]
    return lines[-1] if lines else ""


def namespace_argument(parser: argparse.ArgumentParser, default: str | None = DEFAULT_NAMESPACE) -> None:
    said = f"the job's namespace (default: {default or 'all'})"
    parser.add_argument("-n", "--namespace", type=name, default=default, metavar="NS", help=said)
