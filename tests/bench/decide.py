"""Measure the time of one decision of the policy `weir`: `make bench-decide` (some minutes).

    full           the first decision on a state that was stored and read again: all jobs wait, or
                   half of them run
    incremental    the decision after one node's `CapacityChanged`, on a known state
    one report     the decision after one job's `ProgressReported`, on a known state
    programs       as full, but each job has its own program (in all others, eight share one)
    quotas         as full, but jobs belong to four namespaces, each with a quota below its demand

    tables         computed once before a full decision: the tables of the state, from its stored
                   models

States are folded from messages (`decide_world.py`). Before each full decision the state is a copy
made of new objects, and every running job has reported another speed; nothing but this state is
kept between decisions. Times are wall times in ms, with the garbage collector set as in the
service: of full decisions `decide` alone; of the others also decoding and folding the fact, and
updating the tables. The exponent is the slope of ln(median full time) over ln(nodes x jobs), by
least squares.

`OLD=COMMIT make bench-decide`: the benchmark of that commit runs in alternation with this one,
`OLD_ROUNDS` (2) times each. For each figure that both have, `ratio_FIGURE` is our median divided by
theirs.
"""

from __future__ import annotations

import cProfile
import gc
import itertools
import json
import math
import os
import pstats
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from services.allocator.decide import decide, prepare_tables
from services.allocator.service import collect_garbage_seldom
from services.allocator.settings import Rules
from shared.messages import Message
from tests.bench.decide_world import ALIKE, RULES, Cluster, variations, with_quotas
from tests.bench.report import finish, median, percentile, say

NODES, JOBS = (64, 256, 1024, 4096), (40, 160, 640, 2560)
STATED, LARGEST = (1024, 640), (4096, 2560)
SHAPES = [
    (int(nodes), int(jobs))
    for nodes, jobs in re.findall(r"(\d+)x(\d+)", os.environ.get("BENCH_SHAPES", ""))
] or list(itertools.product(NODES, JOBS))
"""Nodes and jobs. BENCH_SHAPES=64x40,1024x640 selects these; it must include `STATED`."""
SAMPLES, SAMPLES_STATED = 4, int(os.environ.get("BENCH_SAMPLES", "100"))
OLD_ROUNDS = int(os.environ.get("OLD_ROUNDS", "2"))
Times = dict[str, list[float]]


def grown(nodes: int, jobs: int, alike: int = ALIKE, rules: Rules = RULES) -> Cluster:
    """Return a cluster in which half of the jobs have run for a while, and the others are new.

    A running job has reported at two sizes if it grew.
    """
    cluster = Cluster(nodes, jobs, 1, alike, rules)
    cluster.accept(0, jobs // 2)
    for _ in range(2):
        cluster.settle()
        cluster.report()
    cluster.accept(jobs // 2, jobs)
    return cluster


def fresh(nodes: int, jobs: int, alike: int = ALIKE, rules: Rules = RULES) -> Cluster:
    cluster = Cluster(nodes, jobs, 2, alike, rules)
    cluster.accept(0, jobs)
    return cluster


def full(cluster: Cluster, samples: int) -> Iterator[tuple[float, float]]:
    """Yield the times in ms of each decision, and of making the tables before it."""
    for state in variations(cluster, samples):
        gc.collect()
        began = time.perf_counter()
        ready = prepare_tables(state, cluster.story.rules)
        tables_s = time.perf_counter() - began
        gc.collect()
        began = time.perf_counter()
        decide(ready, cluster.story.now + 60.0, cluster.story.rules)
        yield (time.perf_counter() - began) * 1000.0, tables_s * 1000.0


def incremental(cluster: Cluster, samples: int, stir: Callable[[], Message]) -> Iterator[float]:
    """Yield the time in ms of each decision after a fact from `stir`.

    The actions of each decision are carried out and reported before the next fact.
    """
    story = cluster.story
    cluster.settle()
    story.decide(after_s=1.0)
    cluster.follow()
    gc.collect()
    for _ in range(samples):
        fact = stir()
        began = time.perf_counter()
        story.hear(fact)
        story.state = prepare_tables(story.state, story.rules)
        story.decisions = decide(
            story.state, story.now, story.rules, story.decisions.pending_changes
        )
        yield (time.perf_counter() - began) * 1000.0
        story.hear(*story.decisions.actions, after_s=0.0)
        cluster.follow()


def cell(nodes: int, jobs: int) -> Times:
    samples = SAMPLES_STATED if (nodes, jobs) == STATED else SAMPLES
    running = grown(nodes, jobs)
    waiting = list(full(fresh(nodes, jobs), -(-samples // 2)))
    half_running = list(full(running, samples // 2))
    found = {
        "waiting": [decision_ms for decision_ms, _ in waiting],
        "half running": [decision_ms for decision_ms, _ in half_running],
        "tables": [tables_ms for _, tables_ms in (*waiting, *half_running)],
        "incremental": list(incremental(running, samples, running.stir)),
        "one report": list(incremental(running, samples, running.report_one)),
    }
    if (nodes, jobs) == STATED:
        found["programs"] = full_times(nodes, jobs, samples // 2, 1, RULES)
        found["quotas"] = full_times(nodes, jobs, samples // 2, ALIKE, with_quotas(nodes))
    return found


def full_times(nodes: int, jobs: int, samples: int, alike: int, rules: Rules) -> list[float]:
    """Return times in ms of full decisions, with all jobs waiting, and with half running."""
    clusters = (fresh(nodes, jobs, alike, rules), grown(nodes, jobs, alike, rules))
    return [took_ms for cluster in clusters for took_ms, _ in full(cluster, -(-samples // 2))]


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
    cells = (
        f"{kind} {median(took):8.1f} (p99 {percentile(took, 0.99):8.1f})"
        for kind, took in times.items()
    )
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
        | {
            f"{kind.replace(' ', '_')}_p50_ms": round(median(took), 3)
            for kind, took in times.items()
        }
        for (nodes, jobs), times in found.items()
    ]
    largest = {"full_4096x2560_p50_ms": median(full_ms(found[LARGEST]))} if LARGEST in found else {}
    return {
        "full_1024x640_p99_ms": percentile(full_ms(stated), 0.99),
        "incremental_1024x640_p99_ms": percentile(stated["incremental"], 0.99),
        "report_p99_ms": percentile(stated["one report"], 0.99),
        "full_640_programs_p99_ms": percentile(stated["programs"], 0.99),
        "full_quotas_p99_ms": percentile(stated["quotas"], 0.99),
        "growth_exponent": exponent(found),
        **largest,
        "table": rows,
    }


# ---------------------------------------------------------------- comparison with another commit


def compare_with(old: str) -> dict[str, Any]:
    """Measure this commit and another one in alternation; return both figures and their ratios."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, old], check=True)
        try:
            for number in range(OLD_ROUNDS):
                say(f"--- round {number + 1} of {OLD_ROUNDS}: {old}")
                theirs.append(run_in(Path(folder)))
                say(f"--- round {number + 1} of {OLD_ROUNDS}: this one")
                ours.append(run_in(Path.cwd()))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    figures = {name: median(each[name] for each in ours) for name in ours[0] if name != "table"}
    old_figures = {
        f"old_{name}": median(each[name] for each in theirs)
        for name in figures
        if name in theirs[0]
    }
    ratios = {
        f"ratio_{name}": value / old_figures[f"old_{name}"]
        for name, value in figures.items()
        if f"old_{name}" in old_figures
    }
    return {"old": old, **figures, **old_figures, **ratios, "table": ours[-1]["table"]}


def run_in(folder: Path) -> dict[str, Any]:
    """Run the benchmark of the checkout in this folder, and return its figures."""
    environ = {name: value for name, value in os.environ.items() if name != "OLD"}
    command = [sys.executable, "-m", "tests.bench.decide"]
    ended = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def profile(nodes: int, jobs: int) -> None:
    """Profile decisions: `python -m tests.bench.decide NODES JOBS`."""
    clusters = {"waiting": fresh(nodes, jobs), "half running": grown(nodes, jobs)}
    for kind, cluster in clusters.items():
        say(f"--- full, {kind}")
        (copy,) = variations(cluster, 1)
        state = prepare_tables(copy, cluster.story.rules)
        with cProfile.Profile() as measured:
            decide(state, cluster.story.now + 60.0, cluster.story.rules)
        pstats.Stats(measured, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    say("--- incremental")
    with cProfile.Profile() as measured:
        for _ in incremental(clusters["half running"], 20, clusters["half running"].stir):
            pass
    pstats.Stats(measured, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    collect_garbage_seldom()
    if len(sys.argv) == 3:
        profile(int(sys.argv[1]), int(sys.argv[2]))
    elif "OLD" in os.environ:
        finish(compare_with(os.environ["OLD"]))
    else:
        finish(figures(table()))
