"""Hears: nodes and pods, ResourceQuotas, LimitRanges, claims and volumes, from the Kubernetes API.
Says: `CapacityChanged`, for each node whose free capacity truly changed; `QuotaChanged`, for each
namespace whose quotas, or their use, did; `ClaimsChanged`, for each namespace whose claims are
bound to other nodes. Read first: `capacity.py`, what a node can still hold; `quotas.py` and
`claims.py`, what a namespace may; then `service.py`.
"""
