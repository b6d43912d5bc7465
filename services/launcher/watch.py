"""What the launcher looks at: one watch a kind, and of pods and services Weir's own alone. Edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.launcher import facts
from services.launcher.facts import Kind
from services.launcher.labels import SELECTOR
from services.launcher.paths import path
from shared.kube.client import Api
from shared.kube.reader import Event, Reader

KINDS: tuple[Kind, ...] = ("nodes", "services", "networkpolicies", "pods")
READERS: dict[Kind, Callable[[bytes], Any]] = {
    "nodes": facts.node_fact,
    "services": facts.service_fact,
    "networkpolicies": facts.policy_fact,
    "pods": facts.pod_fact,
}
OnEvent = Callable[[Kind, Event[Any]], None]


async def watch(api: Api, kind: Kind, namespace: str, on_event: OnEvent) -> None:
    """Tell everything of a kind, for ever; in one namespace, or with none given in all."""
    where = path(kind, "" if kind == "nodes" else namespace)
    query = {} if kind == "nodes" else {"labelSelector": SELECTOR}
    async for event in Reader(api, where, READERS[kind], query).follow():
        on_event(kind, event)
