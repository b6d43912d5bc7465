"""A cluster on one machine: a Kubernetes API stand-in on loopback whose kubelet runs pods as
processes.

Hears: what any Kubernetes client asks for, over HTTP on 127.0.0.1.
Says:  what a real API server would: objects, watches, Status objects for every refusal.
Read first: `service.py`, how it is put together; `store.py`, the rules of state; `kubelet/__init__.py`, pods
as processes.

    clients --> api/ --> store --> journal --> watches
                           ^          |
                           |          +--> scheduling (asks scheduler), controllers (ask garbage),
                           |                kubelet (asks rules)
                           +------------------------------------------------------------------+

The law: the store alone holds state; every part reads the journal and writes to the store; what is
decided is decided by pure functions (`scheduler`, `garbage`, `objects/`, `kubelet/rules`,
`kubelet/status`).

Nodes that somebody registers over the API are the kubelet's no business: pods bound to them stay as
their clients say, so hundreds of nodes and thousands of pods can be simulated.

Network policies are objects like any other, and nobody keeps them: all pods are on loopback.

Not here: images, networks, probes, mounts (see `kubelet/launch.py`), pod affinity, topology spread,
preemption, volumes claims that bind, disruption budgets, roles, custom resources, server-side
apply, persistence of objects. Linux only.
"""
