"""Compare all policies on the same work.

    make bench-policies [SURFACES=FILE[,FILE]]      FILE: as for `weir simulate`; default: a formula

The traces are described in `policy_worlds.py`; the same seed gives the same world to every policy.
Ratios are of means over seeds: of mean completion time, its 95th percentile and the makespan;
`worst_...` is over the traces with high load. Environment: BENCH_SEEDS (10), BENCH_POLICIES (names,
separated by `,`; all), BENCH_TRACES (by `;`), BENCH_WORK (1: share of jobs). With BENCH_CELLS=FILE
each finished simulation is appended to that file, and simulations in the file do not run again, so
an interrupted benchmark can be continued (with the same code and surfaces; otherwise remove the
file).

The comparison reserves nothing for jobs that wait for a long time (`reserve_after_s` = 0). With
BENCH_RESERVE_AFTER=900 (any number of seconds) every simulation also runs with that setting, and
`reservation_cost` has the difference by trace and policy: the ratios of completion times, with over
without, and the longest waits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.whatif.simulator import csv_files
from services.whatif.simulator.outcome import run_figures
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import Measured, Surface
from tests.bench.policy_worlds import Trace, scenario
from tests.bench.report import finish

KEPT = os.environ.get("BENCH_CELLS", "")
RESERVE_AFTER_S = float(os.environ.get("BENCH_RESERVE_AFTER", "0"))
SEEDS = int(os.environ.get("BENCH_SEEDS", "10"))
KEPT_BY = ("trace", "policy", "seed", "reserve_after_s")
WORK = float(os.environ.get("BENCH_WORK", "1"))
YARDSTICKS = ("optimus", "static")
OURS = "weir"
KEYS = {"jct_mean_s": "mean", "jct_p95_s": "p95", "makespan_s": "makespan"}
TRACES = (
    Trace(name="light", jobs=40, nodes=16, load=0.3),
    Trace(name="light, large", jobs=100, nodes=256, load=0.4),
    Trace(name="light mixed", jobs=60, nodes=32, load=0.4, mixed=True),
    Trace(name="heavy", jobs=240, nodes=16, load=2.0),
    Trace(name="heavier", jobs=400, nodes=16, load=2.0),
    Trace(name="heavy, large", jobs=400, nodes=32, load=2.0),
    Trace(name="heavy mixed", jobs=300, nodes=16, load=2.0, mixed=True),
    Trace(name="bursty", jobs=240, nodes=16, load=2.0, bursty=True),
    Trace(name="bursty mixed", jobs=300, nodes=16, load=2.0, bursty=True, mixed=True),
    Trace(name="heavy, restarts 1 s", jobs=240, nodes=16, load=2.0, restart_s=1.0),
    Trace(name="heavy, restarts 250 s", jobs=240, nodes=16, load=2.0, restart_s=250.0),
    Trace(name="heavy, noise 20 %", jobs=240, nodes=16, load=2.0, noise=0.2),
)


class Cell(NamedTuple):
    trace: Trace
    policy: str
    seed: int
    reserve_after_s: float = 0.0


def by_formula() -> dict[str, Surface]:
    """Return surfaces with assumed coefficients.

    A step of one sample takes a/w + b + c w/p + d (w + p) s.
    """
    forms = {
        "compute-bound": (1.0, 0.02, 0.02, 0.001),
        "balanced": (1.0, 0.10, 0.10, 0.005),
        "communication-bound": (1.0, 0.10, 0.60, 0.005),
    }
    return {name: Surface(_points(*form)) for name, form in forms.items()}


def _points(a: float, b: float, c: float, d: float) -> Iterator[Measured]:
    for ps in range(1, 17):
        for workers in range(1, 17):
            yield Measured(
                ps, workers, 64, 64.0 / (a / workers + b + c * workers / ps + d * (ps + workers))
            )


def surfaces(paths: Sequence[str]) -> dict[str, Surface]:
    found: dict[str, Surface] = {}
    for path in paths:
        found |= csv_files.read_surfaces(Path(path).read_text())
    return found or by_formula()


def run(cell: Cell, paths: Sequence[str]) -> tuple[Cell, Mapping[str, Any]]:
    rules = Rules(policy=cell.policy, reserve_after_s=cell.reserve_after_s)
    done = simulate(
        scenario(cell.trace, surfaces(paths), cell.seed), rules, cell.seed, time.perf_counter
    )
    return cell, run_figures(done)


def all_of(cells: Sequence[Cell], paths: Sequence[str]) -> Iterator[tuple[Cell, Mapping[str, Any]]]:
    known = _kept()
    yield from ((cell, known[_name(cell)]) for cell in cells if _name(cell) in known)
    left = [cell for cell in cells if _name(cell) not in known]
    with (
        ProcessPoolExecutor(os.cpu_count()) as workers,
        Progress(console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("simulated", total=len(left))
        for future in as_completed([workers.submit(run, cell, paths) for cell in left]):
            _keep(*future.result())
            yield future.result()
            progress.advance(bar)


def _name(cell: Cell) -> tuple[str, str, int, float]:
    return cell.trace.name, cell.policy, cell.seed, cell.reserve_after_s


def _kept() -> dict[tuple[str, str, int, float], Mapping[str, Any]]:
    """Return the stored results, by trace, policy, seed and setting."""
    if not (KEPT and Path(KEPT).exists()):
        return {}
    rows = [json.loads(line) for line in Path(KEPT).read_text().splitlines()]
    return {tuple(row.get(key, 0.0) for key in KEPT_BY): row["said"] for row in rows}


def _keep(cell: Cell, said: Mapping[str, Any]) -> None:
    if KEPT:
        with open(KEPT, "a") as file:
            file.write(
                json.dumps({**dict(zip(KEPT_BY, _name(cell), strict=True)), "said": said}) + "\n"
            )


def together(
    found: Iterable[tuple[Cell, Mapping[str, Any]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the means over seeds, by trace and policy.

    Times are infinite if not every job was completed with every seed.
    """
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell, said in found:
        rows.setdefault((cell.trace.name, cell.policy), []).append(said)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (trace, policy), runs in sorted(rows.items()):
        whole = all(one["completed"] == one["submitted"] for one in runs)
        means = {
            name: fmean(one[key] for one in runs) if whole else float("inf")
            for key, name in KEYS.items()
        }
        more = {
            "utilisation": fmean(one["utilisation"] or 0.0 for one in runs),
            "resizes": fmean(one["resizes"] for one in runs),
            "wait_max": max(one["wait_max_s"] for one in runs),
        }
        table.setdefault(trace, {})[policy] = {**means, **more}
    return table


def ratios(of: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the ratios of one trace: Weir's policy over the others."""
    ours, seeds = of[OURS], [said for name, said in of.items() if name not in (*YARDSTICKS, OURS)]
    others = [said for name, said in of.items() if name != OURS]
    found = {"ratio_to_optimus": ours["mean"] / of["optimus"]["mean"]} if "optimus" in of else {}
    if seeds:
        found["ratio_to_best_seed"] = ours["mean"] / min(said["mean"] for said in seeds)
    for name in ("p95", "makespan"):
        found[f"{name}_ratio_to_best"] = ours[name] / min(said[name] for said in others)
    return found


def reservation_costs(
    without: Mapping[str, Mapping[str, Mapping[str, float]]],
    reserved: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the effect of reservations, by trace and policy."""
    return {
        trace: {
            policy: {
                "mean_ratio": said["mean"] / without[trace][policy]["mean"],
                "p95_ratio": said["p95"] / without[trace][policy]["p95"],
                "wait_max_s": said["wait_max"],
                "wait_max_without_s": without[trace][policy]["wait_max"],
            }
            for policy, said in of.items()
        }
        for trace, of in reserved.items()
    }


def told(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    console = Console(stderr=True)
    for trace, of in table.items():
        shown = Table("policy", "mean s", "p95 s", "makespan s", "used", "resizes", title=trace)
        for policy, said in sorted(of.items(), key=lambda item: item[1]["mean"]):
            shown.add_row(
                policy,
                *(f"{said[key]:,.0f}" for key in KEYS.values()),
                f"{said['utilisation']:.2f}",
                f"{said['resizes']:.0f}",
            )
        console.print(shown)


def main(paths: Sequence[str]) -> None:
    names = (
        os.environ.get("BENCH_POLICIES", "").split(",")
        if os.environ.get("BENCH_POLICIES")
        else [*POLICIES]
    )
    wanted = (
        os.environ.get("BENCH_TRACES", "").split(";")
        if os.environ.get("BENCH_TRACES")
        else [t.name for t in TRACES]
    )
    traces = [
        replace(trace, jobs=round(WORK * trace.jobs)) for trace in TRACES if trace.name in wanted
    ]
    settings = dict.fromkeys((0.0, RESERVE_AFTER_S))
    cells = [
        Cell(t, policy, seed, s)
        for t in traces
        for seed in range(SEEDS)
        for policy in names
        for s in settings
    ]
    found = list(all_of(cells, paths))
    table = together(pair for pair in found if not pair[0].reserve_after_s)
    told(table)
    loads = {trace.name: trace.load for trace in TRACES}
    by_trace = {trace: ratios(of) for trace, of in table.items() if OURS in of and len(of) > 1}
    loaded = [found for trace, found in by_trace.items() if loads[trace] >= 1.5]
    keys = sorted({key for found in loaded for key in found})
    worst = {f"worst_{key}": max(found[key] for found in loaded if key in found) for key in keys}
    reserved = together(pair for pair in found if pair[0].reserve_after_s)
    costs = {"reservation_cost": reservation_costs(table, reserved)} if reserved else {}
    finish({**worst, "seeds": SEEDS, "ratios": by_trace, "traces": table, **costs})


if __name__ == "__main__":
    main([path for argument in sys.argv[1:] for path in argument.split(",") if path])
