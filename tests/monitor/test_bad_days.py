"""Tests of the monitor with an API server that fails at random.

Its facts are true, in the order of the changes, and at last current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import CapacityChanged
from tests.monitor.builders import node, ours
from tests.monitor.test_service import monitor, settled
from tests.shared.kube.api_server import serving
from tests.shared.kube.flaky_api_server import PATIENCE_S, RudeServer

NODES = ("n0", "n1", "n2")
QUICK = {
    "kube_timeout_s": PATIENCE_S,
    "kube_watch_s": 1,
    "kube_retry_max_s": 0.1,
    "kube_rate": 1e3,
    "kube_burst": 100,
}


class Ear:
    def __init__(self) -> None:
        self.said: dict[str, list[CapacityChanged]] = {name: [] for name in NODES}

    async def hear(self, heard: StoredMessage) -> None:
        assert isinstance(heard.message, CapacityChanged)
        self.said[heard.message.node].append(heard.message)

    def pods(self, name: str) -> list[frozenset[str]]:
        return [frozenset(own.pod for own in said.own) for said in self.said[name]]

    def ready(self, name: str) -> list[bool]:
        return [said.ready for said in self.said[name]]


# ---------------------------------------------------------------- true changes


def pods_on(server: RudeServer, name: str) -> list[frozenset[str]]:
    """Return the pods that held resources of a node, after each change."""
    so: list[frozenset[str]] = [frozenset()]
    for _, kind, change in server.history:
        if kind == "pods" and change["object"]["spec"]["nodeName"] == name:
            pod = change["object"]["metadata"]["name"]
            over = change["type"] == "DELETED" or change["object"]["status"]["phase"] == "Failed"
            so.append(so[-1] - {pod} if over else so[-1] | {pod})
    return so


def readiness(server: RudeServer, name: str) -> list[bool]:
    nodes = (c["object"] for _, kind, c in server.history if kind == "nodes")
    return [
        n["status"]["conditions"][0]["status"] == "True"
        for n in nodes
        if n["metadata"]["name"] == name
    ]


def in_order(told: Sequence[Any], so: Iterable[Any]) -> bool:
    """Return True if the facts, without repetitions, occur in this order in the true changes."""
    changes = [one for before, one in zip([None, *told], told, strict=False) if one != before]
    rest = iter(so)
    return all(any(then == one for then in rest) for one in changes)


# ---------------------------------------------------------------- the test


async def live(server: RudeServer, steps: int) -> None:
    """Create, end and delete pods, and change the readiness of nodes.

    Now and then the server restarts, or forgets its history.
    """
    chance = server.chance
    for number in range(steps):
        pods, kind = server.names("pods"), chance.random()
        if kind < 0.1:
            server.put("nodes", node(chance.choice(NODES), ready=chance.choice(["True", "False"])))
        elif kind < 0.3 and pods:
            server.remove("pods", chance.choice(pods))
        elif kind < 0.4 and pods:
            over = server.pod(chance.choice(pods))
            server.put("pods", {**over, "status": {"phase": "Failed"}})
        else:
            server.put("pods", ours(f"p{number}", chance.choice(NODES)))
        if kind > 0.98:
            await server.restart(0.05)
        elif kind > 0.96:
            server.forget()
            server.expire()
        await asyncio.sleep(chance.random() * 0.015)


@pytest.mark.parametrize("seed", range(4))
async def test_random_api_faults_cause_no_missed_and_no_invented_fact(
    nats_url: str, person: Bus, seed: int
) -> None:
    ear = Ear()
    await person.follow([CapacityChanged], ear.hear, {})
    async with serving(RudeServer(seed)) as server:
        for name in NODES:
            server.put("nodes", node(name))
        async with monitor(nats_url, server, **QUICK):
            await live(server, steps=200)
            server.behave()
            so = {name: (pods_on(server, name)[-1], readiness(server, name)[-1]) for name in NODES}
            await settled(
                lambda: so == {name: (ear.pods(name)[-1], ear.ready(name)[-1]) for name in NODES}
            )
    for name in NODES:
        assert in_order(ear.pods(name), pods_on(server, name)), (
            ear.pods(name),
            pods_on(server, name),
        )
        assert in_order(ear.ready(name), readiness(server, name))
        assert all(
            said.free.cpu == 8 - len(said.own) or not said.free.cpu for said in ear.said[name]
        )
