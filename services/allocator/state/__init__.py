"""The state of the allocator: a pure fold of facts. Read first: `state.py`, then `job.py`."""
