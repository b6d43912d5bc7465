"""Dike (Electronics 2019): an estimate by the model's profile, then probes."""

from services.allocator.policies.dike.policy import dike

__all__ = ["dike"]
