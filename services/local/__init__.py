"""A Kubernetes cluster on one machine: an API server on loopback, and a kubelet of processes.

Consumes: HTTP requests of any Kubernetes client, on 127.0.0.1.
Publishes: objects, watch events, and a Status object for every error, as a real API server does.
Read first: `service.py` builds the cluster; `store.py` has the rules of state.

    clients --> api/ --> store --> watch caches --> watches
                           ^          |
                           |          +--> controllers, scheduler loop, kubelet
                           +-----------------------+

Law: only the store holds state. Every other part reads the watch caches and writes to the store.
Pure functions make the decisions (`scheduler`, `objects/`, `kubelet/pod_status`).
Law: no module here imports a module of a service.

The kubelet ignores nodes that a client registers over the API. Pods that are bound to them keep the
status that their clients write. So hundreds of nodes and thousands of pods can be simulated.

Network policies are stored but not enforced: all pods are on loopback.

Not supported: images, networks, probes, mounts (see `kubelet/container.py`), pod affinity, topology
spread, preemption, binding of volume claims, disruption budgets, roles, custom resources,
server-side apply, persistence of objects. Linux only.

Written by hand: kind, k3s and kwok need containers or root, or do not run the commands of pods.
"""
