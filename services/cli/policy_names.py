"""Policies by the names that a person types; `module:function` is one of their own, and is imported."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterable

from services.allocator.enrolment import enrol
from services.allocator.policies import POLICIES
from services.cli.trouble import Trouble
from services.cli.words import Word
from shared.config import BadSettings


def known(names: Iterable[str]) -> None:
    """Raises `BadSettings` that says of each name that is none why not."""
    enrol(names, _failed)


def _several(text: str) -> tuple[str, ...]:
    """Names with commas between, as an argument."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    try:
        known(names or (text,))
    except BadSettings as bad:
        raise argparse.ArgumentTypeError(str(bad)) from bad
    return names


OURS = tuple(sorted(POLICIES))
policies, policy = Word(_several, offers=OURS), Word(lambda text: _several(text)[0], offers=OURS)


def _failed(name: str, error: Exception) -> None:
    """Here nobody goes on without it: whoever writes it wants to know where it failed."""
    where = "".join(traceback.format_exception(error)).rstrip()
    raise Trouble(f"policy {name} failed: {error}\n{where}") from error
