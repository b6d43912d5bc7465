"""Policies by the names that a person types; `module:function` is one of their own, and is imported."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterable

from services.allocator.enrolment import enrol
from services.allocator.policies import POLICIES
from services.cli.trouble import Trouble
from shared.config import BadSettings


def known(names: Iterable[str]) -> None:
    """Raises `BadSettings` that says of each name that is none why not."""
    enrol(names, _failed)


class Policy:
    """A name, as an argument. `offers`: what a shell completes it to."""

    offers = tuple(sorted(POLICIES))

    def __call__(self, text: str) -> str:
        return policies(text)[0]


policy = Policy()


def policies(text: str) -> tuple[str, ...]:
    """Names with commas between, as an argument."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    try:
        known(names or (text,))
    except BadSettings as bad:
        raise argparse.ArgumentTypeError(str(bad)) from bad
    return names


def _failed(name: str, error: Exception) -> None:
    """Here nobody goes on without it: whoever writes it wants to know where it failed."""
    where = "".join(traceback.format_exception(error)).rstrip()
    raise Trouble(f"policy {name} failed: {error}\n{where}") from error
