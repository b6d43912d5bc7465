"""DLRover-RM (`policy.py`), and the thresholds of the open-source DLRover (`heuristic.py`)."""

from services.allocator.policies.dlrover.policy import dlrover

__all__ = ["dlrover"]
