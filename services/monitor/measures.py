"""The cluster in numbers: what its nodes have, what is free of it, and what our pods have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.messages import CapacityChanged, Resources
from shared.runtime.metrics import Family, Labels, Measure

GIB = 1 << 30  # bytes
SHARES = "by share: allocatable, free of every pod's requests, or requested by our own pods (ours)."
CPU = Family(
    name="weir_capacity_cpu_cores",
    kind="gauge",
    help=f"Cores of all nodes, {SHARES}",
    labels=("share",),
)
MEMORY = Family(
    name="weir_capacity_memory_bytes",
    kind="gauge",
    help=f"Memory of all nodes, {SHARES}",
    labels=("share",),
)
DEVICES = Family(
    name="weir_capacity_devices",
    kind="gauge",
    help=f"GPUs of all nodes, {SHARES}",
    labels=("share",),
)
NODES = Family(
    name="weir_capacity_nodes",
    kind="gauge",
    help="Nodes, by state: ready, cordoned, or not ready (unready).",
    labels=("state",),
)
REACTION = Family(
    name="weir_monitor_reaction_seconds",
    kind="histogram",
    help="From when a change of the cluster was seen to when what came of it was on the bus.",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10, 30),
)
Amount = Callable[[Resources], float]


def capacity(told: Iterable[CapacityChanged]) -> tuple[Measure, ...]:
    """Of what was last said of each node."""
    here = [fact for fact in told if not fact.gone]
    return (
        Measure(CPU, _shares(here, lambda has: has.cpu)),
        Measure(MEMORY, _shares(here, lambda has: has.memory_gib * GIB)),
        Measure(DEVICES, _shares(here, lambda has: has.gpu)),
        Measure(NODES, _states(here)),
    )


def _shares(told: list[CapacityChanged], amount: Amount) -> dict[Labels, float]:
    return {
        ("allocatable",): sum(amount(fact.allocatable) for fact in told),
        ("free",): sum(amount(fact.free) for fact in told),
        ("ours",): sum(amount(pod.resources) for fact in told for pod in fact.own),
    }


def _states(told: list[CapacityChanged]) -> dict[Labels, float]:
    cordoned = sum(fact.ready and not fact.schedulable for fact in told)
    unready = sum(not fact.ready for fact in told)
    return {
        ("ready",): len(told) - cordoned - unready,
        ("cordoned",): cordoned,
        ("unready",): unready,
    }
