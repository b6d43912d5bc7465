"""Where each kind of object is found on an API server."""

from __future__ import annotations

GROUPS = {"networkpolicies": "/apis/networking.k8s.io/v1"}
CORE = "/api/v1"


def path(kind: str, namespace: str = "", name: str = "") -> str:
    """All of a kind; in one namespace, where one is given; or one object."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUPS.get(kind, CORE)}{inside}/{kind}" + (f"/{name}" if name else "")
