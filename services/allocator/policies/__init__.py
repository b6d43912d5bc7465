"""What a policy is (`contract.py`), those that there are (`registry.py`), and each of them."""

from __future__ import annotations

from typing import Any

from services.allocator.policies.contract import JobSeen, Policy, Want

__all__ = ["POLICIES", "JobSeen", "Policy", "Want"]


def __getattr__(name: str) -> Any:
    """Import `POLICIES` from here as until 0.3.0; until 0.6.0. Not at once: models and placing import the contract."""
    if name == "POLICIES":
        from services.allocator.policies.registry import POLICIES

        return POLICIES
    raise AttributeError(name)
