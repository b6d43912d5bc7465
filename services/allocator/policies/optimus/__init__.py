"""Optimus (EuroSys 2018), for comparison: its rule and choice of nodes (`policy.py`), fits and
probes.
"""

from services.allocator.policies.optimus.policy import optimus

__all__ = ["optimus"]
