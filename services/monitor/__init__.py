"""Consumes: nodes, pods, ResourceQuotas, LimitRanges, claims and volumes of the Kubernetes API.
Publishes: `CapacityChanged` for each node whose free capacity changed; `QuotaChanged` for each
namespace whose quotas, or their use, changed; `ClaimsChanged` for each namespace whose claims are
bound to other nodes. Read first: `capacity.py`, then `quotas.py`, `claims.py` and `service.py`.
"""
