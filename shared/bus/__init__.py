"""The bus: NATS JetStream, as far as Weir needs it. Read first: `bus.py`, then `subjects.py`."""
