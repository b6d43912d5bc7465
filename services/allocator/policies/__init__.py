"""The policies: their contract (`contract.py`), their names (`registry.py`), and a module or
package for each.
"""

from __future__ import annotations

from typing import Any

from services.allocator.policies.contract import JobSeen, JobSnapshot, Policy, Target, Want

__all__ = ["POLICIES", "JobSeen", "JobSnapshot", "Policy", "Target", "Want"]


def __getattr__(name: str) -> Any:
    """Return `POLICIES` for imports written before 0.3.0; until 0.6.0. It is lazy because the
    policies import this package.
    """
    if name == "POLICIES":
        from services.allocator.policies.registry import POLICIES

        return POLICIES
    raise AttributeError(name)
