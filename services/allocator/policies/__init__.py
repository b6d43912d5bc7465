"""Who should have how much: one file a policy, chosen by name. Read first: `contract.py`."""

from __future__ import annotations

from services.allocator.policies.config_manager import config_manager
from services.allocator.policies.contract import JobSeen, Policy, Want
from services.allocator.policies.static import static

POLICIES: dict[str, Policy] = {
    "static": static,
    "config-manager": config_manager,
}

__all__ = ["POLICIES", "JobSeen", "Policy", "Want"]
