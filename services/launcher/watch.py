"""What the launcher looks at: nodes, and what is Weir's own in the namespaces of jobs; one watch a
kind and namespace.

Edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.launcher import facts
from services.launcher.facts import Kind
from services.launcher.labels import SELECTOR
from services.launcher.paths import path
from services.launcher.settings import Settings
from shared.kube.client import Api
from shared.kube.watch import Event, ListWatch

KINDS: tuple[Kind, ...] = ("nodes", "services", "networkpolicies", "pods")
READERS: dict[Kind, Callable[[bytes], Any]] = {
    "nodes": facts.node_fact,
    "services": facts.service_fact,
    "networkpolicies": facts.policy_fact,
    "pods": facts.pod_fact,
}
OnEvent = Callable[[Kind, str, Event[Any]], None]
"""Kind, the namespace that was looked at (empty: all), and what was seen there."""


def watched(settings: Settings) -> list[tuple[Kind, str]]:
    """Each kind with each namespace in which it is looked at; empty: in all of them."""
    inside = settings.job_namespaces or ("",)
    kinds = [kind for kind in KINDS if kind != "networkpolicies" or settings.network_policies]
    return [
        (kind, namespace) for kind in kinds for namespace in (("",) if kind == "nodes" else inside)
    ]


async def watch(api: Api, kind: Kind, namespace: str, on_event: OnEvent) -> None:
    """Tell everything of a kind, for ever."""
    query = {} if kind == "nodes" else {"labelSelector": SELECTOR}
    async for event in ListWatch(api, path(kind, namespace), READERS[kind], query).follow():
        on_event(kind, namespace, event)
