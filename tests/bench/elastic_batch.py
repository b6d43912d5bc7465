"""IBM's elastic scaler: is its dynamic program exact and fast, and when does a variable batch pay?

    make bench-elastic-batch [SURFACES=FILE]      FILE: model,global_batch,gpus,samples_per_second

Arrivals over eight hours on 40 devices, decided every 10 minutes: constant loads (low to high) and
bursts, in drop and queue mode, for several limits of the examples that fit in a device's memory.
The program with a variable batch is compared with itself with the batch fixed at the minimum, the
maximum, or at random, and with FIFO without elasticity. Load: device-seconds of work arriving per
second and device, at the speed of one device without a limit. Without SURFACES the speeds are those
of a formula with given coefficients; with it, they are the measured ones, and the error of the
analyser at hidden points is reported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.elastic_exact import decide_ms, equals_brute_force, policy_ms
from tests.bench.elastic_models import (
    Load,
    analysed,
    arriving,
    by_formula,
    by_measurement,
    can_run,
    measured,
)
from tests.bench.elastic_world import ARMS, FIXED, Model, World, play
from tests.bench.report import finish, median, percentile, say

SURFACES = os.environ.get("SURFACES", "")
PICTURE = Path(os.environ.get("BENCH_PICTURE", "bench-elastic-batch.png"))
SEEDS = int(os.environ.get("BENCH_SEEDS", "3"))
CASES = int(os.environ.get("BENCH_CASES", "3000"))
DEVICES, DEVICES_MAX = 40, 16
INTERVAL_S, RESTART_S, UPTO_S = 600.0, 30.0, 3600.0 * float(os.environ.get("BENCH_HOURS", "8"))
LOADS = (0.25, 0.5, 0.75, 1.0, 2.0)
"""Device-seconds of work arriving per second and device, from low to high."""
CAPS = (32, 64, 128, 4096)
"""Examples that fit in a device's memory; the last value is practically no limit."""
COSTS_S = (0.0, 30.0, 120.0, 600.0, 2400.0, 9600.0, 38400.0)
DEAR = ("load 0.5", 64)
"""A condition with enough restarts to compare their costs: arrivals, and examples on a device.

Under higher load few jobs change.
"""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One arm under one condition, over all seeds. `completion_s`: mean, from arrival to end."""

    arrivals: str
    cap: int
    mode: str
    restart_s: float
    arm: str
    submitted: int
    completed: int
    completion_s: float
    restarts: int


# ---------------------------------------------------------------- comparison


def bursts(now: float) -> float:
    """Return the load: high for an hour, low for an hour."""
    return 4.0 if now // 3600 % 2 == 0 else 0.1


def conditions() -> dict[str, Load]:
    constant = {f"load {load:g}": lambda now, load=load: load for load in LOADS}
    return {**constant, "bursts": bursts}


def table(models: Sequence[Model]) -> list[Cell]:
    """Return the results of every arm in every condition."""
    cells = []
    for name, mode in itertools.product(conditions(), ("drop", "queue")):
        for cap in CAPS:
            cells += row(models, name, cap, mode, RESTART_S)
        say(f"{name}, {mode}: {_told(cells[-len(ARMS) * len(CAPS) :])}")
    return cells


def row(
    models: Sequence[Model], arrivals: str, cap: int, mode: str, restart_s: float
) -> list[Cell]:
    world = World(
        devices=DEVICES,
        devices_max=DEVICES_MAX,
        device_batch_max=cap,
        interval_s=INTERVAL_S,
        restart_s=restart_s,
        drop=mode == "drop",
    )
    able = [model for model in models if can_run(model, cap, DEVICES_MAX)]
    load = conditions()[arrivals]
    traces = [arriving(able, DEVICES, load, UPTO_S, seed) for seed in range(SEEDS)] if able else []
    return [_cell(world, arrivals, mode, arm, traces) for arm in ARMS] if able else []


def _cell(world: World, arrivals: str, mode: str, arm: str, traces: Sequence[Any]) -> Cell:
    played = [play(world, trace, ARMS[arm]) for trace in traces]
    done = [s for one in played for s in one.completion_s]
    return Cell(
        arrivals=arrivals,
        cap=world.device_batch_max,
        mode=mode,
        restart_s=world.restart_s,
        arm=arm,
        submitted=sum(len(trace) for trace in traces),
        completed=len(done),
        completion_s=sum(done) / len(done) if done else 0.0,
        restarts=sum(one.restarts for one in played),
    )


def ratios(cells: Iterable[Cell], against: str) -> list[tuple[Cell, float]]:
    """Return the gain of a variable batch by condition.

    It is the ratio of completed jobs in drop mode, and of speed of completion in queue mode.
    """
    by_arm: dict[tuple[Any, ...], dict[str, Cell]] = {}
    for cell in cells:
        by_arm.setdefault((cell.arrivals, cell.cap, cell.mode, cell.restart_s), {})[cell.arm] = cell
    return [(arms["variable"], _ratio(arms["variable"], arms[against])) for arms in by_arm.values()]


def _ratio(variable: Cell, other: Cell) -> float:
    if variable.mode == "drop":
        return variable.completed / max(1, other.completed)
    return other.completion_s / max(1e-9, variable.completion_s)


def _told(cells: Sequence[Cell]) -> str:
    parts = []
    for arm in [*FIXED, "fifo"]:
        told = " ".join(f"{ratio:.2f}" for _, ratio in ratios(cells, arm))
        parts.append(f"{arm} {told}")
    return f"ratio at caps {' '.join(str(c) for c in CAPS)}: " + "; ".join(parts)


def best(cells: Sequence[Cell], mode: str, arms: Sequence[str]) -> tuple[float, str]:
    """Return the largest ratio, and its condition."""
    found = [(ratio, c, arm) for arm in arms for c, ratio in ratios(cells, arm) if c.mode == mode]
    ratio, cell, arm = max(found, key=lambda one: one[0])
    return ratio, f"{cell.arrivals}, {cell.cap} a device, against {arm}"


def costs(models: Sequence[Model]) -> list[Cell]:
    """Return the results for several costs of a restart. The gain falls when restarts cost more."""
    return [cell for cost in COSTS_S for cell in row(models, *DEAR, "queue", cost)]


# ---------------------------------------------------------------- output


def draw(cells: Sequence[Cell], dear: Sequence[Cell]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for axis, mode, what in (
        (axes[0], "drop", "jobs completed"),
        (axes[1], "queue", "speed of completion"),
    ):
        for cap, arm in itertools.product(CAPS, ("fixed-max", "fixed-random")):
            found = {
                c.arrivals: r for c, r in ratios(cells, arm) if c.mode == mode and c.cap == cap
            }
            points = [
                (load, found[f"load {load:g}"]) for load in LOADS if f"load {load:g}" in found
            ]
            style = {
                "label": f"{arm}, {cap} a device",
                "linestyle": "-" if arm == "fixed-max" else "--",
            }
            (
                axis.plot(
                    *zip(*points, strict=True), color=f"C{CAPS.index(cap)}", marker="o", **style
                )
                if points
                else None
            )
        axis.set(title=f"variable batch: {what}, times that of", xlabel="load", yscale="log")
        axis.axhline(1, color="grey", linewidth=0.8)
    for arm in [*FIXED, "fifo"]:
        axes[2].plot(
            COSTS_S[: len(dear) // len(ARMS)],
            [r for _, r in ratios(dear, arm)],
            marker="o",
            label=arm,
        )
    axes[2].set(
        title=f"speed of completion ({DEAR[0]}, {DEAR[1]} a device)",
        xlabel="a restart, s",
        yscale="log",
    )
    axes[2].set_xscale("symlog", linthresh=30)
    axes[2].set_xlim(left=0)
    axes[2].axvline(INTERVAL_S, color="grey", linestyle=":")
    for axis in axes[1:]:
        axis.legend(fontsize=7)
    for axis in axes:
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
    figure.savefig(PICTURE, dpi=110)


def print_table(cells: Sequence[Cell]) -> None:
    say(
        f"{'arrivals':9} {'cap':>5} {'mode':6} {'cost':>6} {'arm':13} {'completed':>12}"
        f" {'mean, s':>9} {'restarts':>9}"
    )
    for c in cells:
        where = f"{c.arrivals:9} {c.cap:5} {c.mode:6} {c.restart_s:6.0f} {c.arm:13}"
        say(f"{where} {f'{c.completed}/{c.submitted}':>12} {c.completion_s:9.0f} {c.restarts:9}")


def analyser_errors(known: dict[str, Any]) -> dict[str, float]:
    """Return the median relative errors of the analyser at hidden numbers of devices."""
    return {name: round(median(analysed(points)[1]), 3) for name, points in known.items()}


def main() -> dict[str, Any]:
    known = measured(Path(SURFACES)) if SURFACES else {}
    models = by_measurement(known) if known else by_formula()
    exact = equals_brute_force(CASES)
    say(f"equals brute force in {CASES} cases: {exact}")
    took, (fresh, again) = decide_ms(), policy_ms()
    say(
        f"640 jobs x 1,024 devices, up to 64 each: median {median(took):.1f} ms, most"
        f" {max(took):.1f} ms"
    )
    say(
        f"through the policy: {median(fresh):.1f} ms with every speed new, {median(again):.1f} ms"
        " with none new"
    )
    cells, dear = table(models), costs(models)
    print_table([*cells, *dear])
    draw(cells, dear)
    say(f"the picture: {PICTURE}")
    policy = {"policy_fresh_ms": median(fresh), "policy_again_ms": median(again)}
    return (
        result(exact, took, cells, dear)
        | policy
        | ({"analyser_error_median": analyser_errors(known)} if known else {})
    )


def result(
    exact: bool, took: Sequence[float], cells: Sequence[Cell], dear: Sequence[Cell]
) -> dict[str, Any]:
    completed, completion = best(cells, "drop", FIXED), best(cells, "queue", FIXED)
    by_cost = {arm: [round(r, 3) for _, r in ratios(dear, arm)] for arm in [*FIXED, "fifo"]}
    return {
        "equals_brute_force": exact,
        "decide_ms": median(took),
        "decide_ms_p99": percentile(took, 0.99),
        "completed_ratio_max": completed[0],
        "completed_ratio_max_at": completed[1],
        "completion_speedup_max": completion[0],
        "completion_speedup_max_at": completion[1],
        "completed_ratio_max_by_arm": {
            arm: round(best(cells, "drop", [arm])[0], 3) for arm in [*FIXED, "fifo"]
        },
        "completion_speedup_max_by_arm": {
            arm: round(best(cells, "queue", [arm])[0], 3) for arm in [*FIXED, "fifo"]
        },
        "interval_s": INTERVAL_S,
        "restart_costs_s": list(COSTS_S),
        "completion_speedup_by_restart_cost": by_cost,
        "gain_left_at_dearest": max(by_cost["fixed-max"][-1:] + by_cost["fifo"][-1:], default=0.0),
        "table": [msgspec.structs.asdict(cell) for cell in cells],
    }


if __name__ == "__main__":
    finish(main())
