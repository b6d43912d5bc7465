"""Weir's own policy, the default. Read first: `policy.py`, then `staircase.py` and `auction.py`."""

from services.allocator.policies.weir.policy import weir

__all__ = ["weir"]
