"""The jobs and clusters of `bench-policies`: arrivals at a given load, from measured speeds.

    work of a job   T seconds at its start size, ln T ~ N(ln MIDDLE_S, SPREAD^2), cut to
                    [T_LEAST_S, T_MOST_S]
    demand          the fewest core-seconds (device-seconds) that training its samples can take,
                    over all sizes
    offered load    demand that arrives per second / cores (devices) in the cluster
    light, heavy    Poisson arrivals with this load;  bursty: of bursts of `BURST` jobs

Mixed clusters have nodes with devices and nodes without. The load is that of devices for jobs that
request them, and of cores for the other jobs, each as given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from services.whatif.simulator.scenario import Axis, Cluster, Machine, Scenario, Surface, Work
from shared.messages import Span

MIDDLE_S, SPREAD = 1800.0, 0.8
T_LEAST_S, T_MOST_S = 300.0, 3 * 3600.0
BURST = 20
EPOCH_S = 60.0
"""Time in s of an epoch of each model on one worker."""
NODE = Machine(name="node", cpu=16.0, memory_gib=64.0)
DEVICE_NODE = Machine(name="device-node", cpu=16.0, memory_gib=128.0, gpu=4)
STARTS = ((1, 1), (1, 2), (2, 2), (2, 4))
DEVICE_STARTS = (1, 2, 4)
MOST = 16
TASK_CPU = 4.0
"""Cores of a ps or worker without devices; a node has room for four."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a comparison: numbers of jobs and nodes, and the arrivals."""

    name: str
    jobs: int
    nodes: int
    load: float
    bursty: bool = False
    mixed: bool = False
    restart_s: float = 30.0
    noise: float = 0.03


def scenario(trace: Trace, surfaces: Mapping[str, Surface], seed: int) -> Scenario:
    chance = np.random.default_rng((seed, trace.jobs, trace.nodes))
    served = [model for model, surface in sorted(surfaces.items()) if surface.served is not None]
    alone = [model for model, surface in sorted(surfaces.items()) if surface.alone is not None]
    devices = bool(alone) and (trace.mixed or not served)
    cluster = _cluster(trace, bool(served), devices)
    kinds = [served] * bool(served) + [alone] * devices
    jobs: list[Work] = []
    for models, count in zip(kinds, _split(trace.jobs, len(kinds)), strict=True):
        drawn = [
            _work(models, surfaces, chance, f"{'job' if models is served else 'device-job'}-{n}")
            for n in range(count)
        ]
        jobs += _arriving(drawn, trace, surfaces, _capacity(cluster, models is alone), chance)
    return Scenario(
        jobs=tuple(sorted(jobs, key=lambda work: (work.submitted_s, work.job))),
        cluster=cluster,
        surfaces=surfaces,
        restart_s=trace.restart_s,
        noise=trace.noise,
    )


def _cluster(trace: Trace, served: bool, devices: bool) -> Cluster:
    if not devices:
        return Cluster(nodes=(msgspec.structs.replace(NODE, count=trace.nodes),))
    if not served:
        return Cluster(nodes=(msgspec.structs.replace(DEVICE_NODE, count=trace.nodes),))
    half = trace.nodes // 2
    plain, with_devices = (
        msgspec.structs.replace(m, count=n)
        for m, n in ((NODE, trace.nodes - half), (DEVICE_NODE, half))
    )
    return Cluster(nodes=(plain, with_devices))


def _split(count: int, parts: int) -> list[int]:
    return [count // parts + (n < count % parts) for n in range(parts)]


def _capacity(cluster: Cluster, devices: bool) -> float:
    """Return the number of devices, or the cores of nodes without devices."""
    if devices:
        return float(sum(machine.gpu * machine.count for machine in cluster.nodes))
    return sum(machine.cpu * machine.count for machine in cluster.nodes if not machine.gpu)


def _work(
    models: Sequence[str], surfaces: Mapping[str, Surface], chance: np.random.Generator, name: str
) -> Work:
    model = models[int(chance.integers(len(models)))]
    surface, work_s = surfaces[model], _seconds(chance)
    if isinstance(surface.served, Axis):
        ps, workers = STARTS[int(chance.integers(len(STARTS)))]
        batch = _batches(surface.served.at)[0]
        samples = work_s * surface.speed(ps, workers, batch)
        spans = (
            Span(start=batch, min=batch, max=batch),
            Span(start=ps, min=1, max=MOST),
            Span(start=workers, min=1, max=MOST),
        )
        epochs = max(1, round(samples / (EPOCH_S * surface.speed(1, 1, batch))))
        samples = epochs * EPOCH_S * surface.speed(1, 1, batch)
        return Work(
            job=name,
            model=model,
            epochs=epochs,
            samples=max(1, round(samples)),
            ps_cpu=TASK_CPU,
            worker_cpu=TASK_CPU,
            batch=spans[0],
            ps=spans[1],
            workers=spans[2],
        )
    assert isinstance(surface.alone, Axis)
    workers, batches = (
        DEVICE_STARTS[int(chance.integers(len(DEVICE_STARTS)))],
        _batches(surface.alone.at),
    )
    batch = max(batches[0], min(batches[-1], batches[0] * workers))
    epoch = EPOCH_S * surface.speed(0, 1, batches[0])
    epochs = max(1, round(work_s * surface.speed(0, workers, batch) / epoch))
    return Work(
        job=name,
        model=model,
        epochs=epochs,
        samples=max(1, round(epochs * epoch)),
        batch=Span(start=batch, min=batches[0], max=batches[-1]),
        ps=Span(start=0, min=0, max=0),
        workers=Span(start=workers, min=1, max=min(MOST, surface.most_workers)),
        worker_cpu=1.0,
        worker_gpu=1,
    )


def _seconds(chance: np.random.Generator) -> float:
    return min(T_MOST_S, max(T_LEAST_S, math.exp(chance.normal(math.log(MIDDLE_S), SPREAD))))


def _batches(at: Sequence[float]) -> list[int]:
    return [round(math.exp(b)) for b in at]


def demand(work: Work, surface: Surface) -> float:
    """Return core-seconds, or device-seconds, at the size that needs the fewest."""
    sizes = [
        (ps, workers)
        for ps in range(work.ps.min, work.ps.max + 1)
        for workers in range(1, work.workers.max + 1)
    ]
    batches = sorted({work.batch.min, work.batch.start, work.batch.max})
    costs = ((p * work.ps_cpu + w * work.worker_cpu) if p else float(w) for p, w in sizes)
    best = max(
        surface.speed(p, w, b) / cost
        for (p, w), cost in zip(sizes, costs, strict=True)
        for b in batches
    )
    return work.samples / best


def _arriving(
    works: Sequence[Work],
    trace: Trace,
    surfaces: Mapping[str, Surface],
    capacity: float,
    chance: np.random.Generator,
) -> list[Work]:
    """Return the jobs in the order drawn, with arrival times that give the load."""
    total = sum(demand(work, surfaces[work.model]) for work in works)
    span_s = total / (trace.load * capacity)
    size = BURST if trace.bursty else 1
    groups = -(-len(works) // size)
    gaps = chance.exponential(span_s / groups, groups)
    starts = np.cumsum(gaps) - gaps[0]
    return [
        msgspec.structs.replace(work, submitted_s=round(float(starts[n // size]), 3))
        for n, work in enumerate(works)
    ]
