"""Optimus (EuroSys 2018), a yardstick: its rule (`policy.py`), fits, probes and choice of nodes."""

from services.allocator.policies.optimus.policy import optimus

__all__ = ["optimus"]
