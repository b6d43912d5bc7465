"""Policies by the names that a person types; `module:function` is one of their own, and is
imported.
"""

from __future__ import annotations

import argparse

from services.allocator.custom_policies import register_policies
from services.allocator.policies.registry import POLICIES
from services.cli.words import Word
from shared.runtime.config import BadSettings


def _several(text: str) -> tuple[str, ...]:
    """Names with commas between, as an argument."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    try:
        register_policies(names or (text,))
    except BadSettings as bad:
        raise argparse.ArgumentTypeError(str(bad)) from bad
    return names


OURS = tuple(sorted(POLICIES))
policies, policy = Word(_several, offers=OURS), Word(lambda text: _several(text)[0], offers=OURS)
