"""Register custom policies: `module:function`, imported by that name once, at start.

Only the settings of the allocator or of a command can name one (`Rules.policy`, `Rules.policies`).
A request may name a registered policy and nothing else, so no message can cause an import. The
module is searched in Python's path, then in the folder where the process was started.

Neither custom policies nor Weir's own are trusted: see `policy_calls.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from services.allocator.policies.contract import Policy
from services.allocator.policies.registry import POLICIES
from shared.runtime.config import BadSettings


def register_policies(names: Iterable[str]) -> None:
    """Add these policies to the known ones. Raises `BadSettings` with every name that cannot be
    used, and the cause.
    """
    wrong = []
    for name in names:
        if name in POLICIES:
            continue
        try:
            POLICIES[name] = _imported_policy(name)
        except _NoPolicy as unusable:
            wrong.append(f"policy {name!r}: {unusable}")
    if wrong:
        raise BadSettings("\n".join(wrong))


class _NoPolicy(Exception):
    """A name does not belong to a policy."""


def _imported_policy(name: str) -> Policy:
    """Return the policy that `module:function` names. Raises `_NoPolicy` with the cause if it
    cannot be imported or called.
    """
    module, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(sorted(POLICIES))
        raise _NoPolicy(f"known policies are {known}; a custom one is `module:function`")
    _add_current_folder()
    try:
        imported = importlib.import_module(module)
        found: Policy = getattr(imported, function)
    except Exception as error:  # a custom module may raise anything
        raise _NoPolicy(f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise _NoPolicy(f"it is {found!r}, not a function of (cluster, jobs, now)")
    return found


def _add_current_folder() -> None:
    """Add the current folder to the path of Python's imports."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
