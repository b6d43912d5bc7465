"""Hears: nodes and pods, from the Kubernetes API.
Says: `CapacityChanged`, for each node whose free capacity truly changed.
Read first: `capacity.py`, what a node can still hold; then `service.py`."""
