"""The monitor observes the cluster, and publishes capacity, quotas and claims.

Consumes nodes, pods, ResourceQuotas, LimitRanges, claims and volumes of the Kubernetes API.
Publishes `CapacityChanged` for a node with another free capacity, `QuotaChanged` for a namespace
with other quotas or another use of them, and `ClaimsChanged` for a namespace with claims that are
bound to other nodes. Read first: `capacity.py`, then `namespaces.py` and `service.py`.
"""
