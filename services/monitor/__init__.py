"""Hears: nodes and pods, ResourceQuotas and LimitRanges, from the Kubernetes API.
Says: `CapacityChanged`, for each node whose free capacity truly changed; `QuotaChanged`, for each namespace whose
quotas, or their use, did.
Read first: `capacity.py`, what a node can still hold; `quotas.py`, what a namespace may; then `service.py`."""
