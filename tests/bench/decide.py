"""How long one decision of the policy `weir` takes: `make bench-decide` (some minutes).

    full           the first look at a state of which nothing is remembered, all jobs waiting, or half of them running
    incremental    the look after one node's `CapacityChanged`, all else being known
    one report     the look after one job's `ProgressReported`, all else being known

States are folded from messages (`decide_world.py`). Before each full decision every memory of the allocator is emptied,
the state is a copy made of new objects, and every job that runs has reported another speed. Milliseconds of wall time,
`decide` alone, the garbage collector set as in the service; the exponent is the slope of ln(median full time) over
ln(nodes x jobs), by least squares.
"""

from __future__ import annotations

import cProfile
import gc
import itertools
import math
import os
import pstats
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import _lru_cache_wrapper
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from services.allocator.collecting import collect_seldom
from services.allocator.decide import Decisions, decide
from services.allocator.kept import KeptNear, fade
from services.allocator.state import State
from tests.bench.decide_world import RULES, Cluster, variations
from tests.bench.report import finish, median, percentile, say

NODES, JOBS = (64, 256, 1024, 4096), (40, 160, 640, 2560)
STATED = (1024, 640)
SHAPES = [
    (int(nodes), int(jobs)) for nodes, jobs in re.findall(r"(\d+)x(\d+)", os.environ.get("BENCH_SHAPES", ""))
] or list(itertools.product(NODES, JOBS))
"""Nodes and jobs; BENCH_SHAPES=64x40,1024x640: only these, of which one has to be the stated one."""
SAMPLES, SAMPLES_STATED = 4, int(os.environ.get("BENCH_SAMPLES", "100"))
Times = dict[str, list[float]]


def forget() -> None:
    """Empty every memory of the allocator's modules: what fades twice without a question is gone."""
    fade()
    fade()
    modules = [module for name, module in sys.modules.items() if name.startswith("services.allocator")]
    for kept in {id(v): v for module in modules for v in vars(module).values()}.values():
        if isinstance(kept, KeptNear):
            kept.known.clear()
        elif isinstance(kept, _lru_cache_wrapper):
            kept.cache_clear()
    gc.collect()


def timed(state: State, now: float, before: Decisions) -> tuple[float, Decisions]:
    began = time.perf_counter()
    decisions = decide(state, now, RULES, before.wishes)
    return (time.perf_counter() - began) * 1000.0, decisions


def grown(nodes: int, jobs: int) -> Cluster:
    """Half of the jobs have run for a while, at two sizes where they grew; the others have just come."""
    cluster = Cluster(nodes, jobs, seed=1)
    cluster.accept(0, jobs // 2)
    for _ in range(2):
        cluster.settle()
        cluster.report()
    cluster.accept(jobs // 2, jobs)
    return cluster


def fresh(nodes: int, jobs: int) -> Cluster:
    cluster = Cluster(nodes, jobs, seed=2)
    cluster.accept(0, jobs)
    return cluster


def full(cluster: Cluster, samples: int) -> Iterator[float]:
    for state in variations(cluster, samples):
        forget()
        yield timed(state, cluster.story.now + 60.0, Decisions())[0]


def incremental(cluster: Cluster, samples: int, stir: Callable[[], None]) -> Iterator[float]:
    """What each look decides comes true, and is known, before the next fact is heard."""
    story = cluster.story
    cluster.settle()
    story.decide(after_s=1.0)
    cluster.follow()
    gc.collect()
    for _ in range(samples):
        stir()
        took_ms, story.decisions = timed(story.state, story.now, story.decisions)
        yield took_ms
        story.hear(*story.decisions.actions, after_s=0.0)
        cluster.follow()


def cell(nodes: int, jobs: int) -> Times:
    samples = SAMPLES_STATED if (nodes, jobs) == STATED else SAMPLES
    running = grown(nodes, jobs)
    return {
        "waiting": list(full(fresh(nodes, jobs), -(-samples // 2))),
        "half running": list(full(running, samples // 2)),
        "incremental": list(incremental(running, samples, running.stir)),
        "one report": list(incremental(running, samples, running.report_one)),
    }


def table() -> dict[tuple[int, int], Times]:
    console = Console(stderr=True)
    found = {}
    with Progress(console=console) as progress:
        bar = progress.add_task("decisions", total=len(SHAPES))
        for shape in SHAPES:
            found[shape] = cell(*shape)
            console.print(row(shape, found[shape]), soft_wrap=True, highlight=False)
            progress.advance(bar)
    return found


def row(shape: tuple[int, int], times: Times) -> str:
    cells = (f"{kind} {median(took):8.1f} (p99 {percentile(took, 0.99):8.1f})" for kind, took in times.items())
    return f"{shape[0]:5} nodes x {shape[1]:5} jobs, ms: " + "   ".join(cells)


def full_ms(times: Times) -> list[float]:
    return [*times["waiting"], *times["half running"]]


def exponent(found: dict[tuple[int, int], Times]) -> float:
    size = [math.log(nodes * jobs) for nodes, jobs in found]
    took = [math.log(median(full_ms(times))) for times in found.values()]
    return float(np.polyfit(size, took, 1)[0])


def figures(found: dict[tuple[int, int], Times]) -> dict[str, Any]:
    stated = found[STATED]
    rows = [
        {"nodes": nodes, "jobs": jobs}
        | {f"{kind.replace(' ', '_')}_p50_ms": round(median(took), 3) for kind, took in times.items()}
        for (nodes, jobs), times in found.items()
    ]
    return {
        "full_1024x640_p99_ms": percentile(full_ms(stated), 0.99),
        "incremental_1024x640_p99_ms": percentile(stated["incremental"], 0.99),
        "growth_exponent": exponent(found),
        "table": rows,
    }


def profile(nodes: int, jobs: int) -> None:
    """Where the time goes: `python -m tests.bench.decide NODES JOBS`."""
    clusters = {"waiting": fresh(nodes, jobs), "half running": grown(nodes, jobs)}
    for kind, cluster in clusters.items():
        say(f"--- full, {kind}")
        (state,) = variations(cluster, 1)
        forget()
        with cProfile.Profile() as measured:
            decide(state, cluster.story.now + 60.0, RULES)
        pstats.Stats(measured, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    say("--- incremental")
    with cProfile.Profile() as measured:
        for _ in incremental(clusters["half running"], 20, clusters["half running"].stir):
            pass
    pstats.Stats(measured, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    collect_seldom()
    if len(sys.argv) == 3:
        profile(int(sys.argv[1]), int(sys.argv[2]))
    else:
        finish(figures(table()))
