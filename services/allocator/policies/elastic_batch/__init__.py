"""IBM's scaler: sizes and batches chosen together, exactly."""

from services.allocator.policies.elastic_batch.policy import elastic_batch

__all__ = ["elastic_batch"]
