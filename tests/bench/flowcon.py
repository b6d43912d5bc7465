"""FlowCon on a simulated machine of 8 cores: `make bench-flowcon` (about a minute).

Jobs: `flowcon_jobs.py`.

1. The algorithm on a machine on which containers compete (`machine.py`), every arm against the same
   jobs without limits (`no algorithm`), which is the default of Docker. `no update` computes limits
   and applies none; `no back-off` keeps the interval; `strict` lets cores idle rather than exceed a
   limit. The cells of the grid are compared on noise seeds 0 to 9; figures are of seeds 10 to 19.
2. The policy in the real allocator, with changes in place (`flowcon_cluster.py`), against equal
   shares; also `static` (jobs that do not fit wait).

late_job_cut     1 - completion / baseline's of mnist-tf in the seed's schedule, mean over noise
                 seeds, in the best cell of the grid (the published 42 % are `up to`); also the best
                 of the published alphas, the figure of the defaults, and that of the best cell for
                 late jobs that flatten earlier
makespan_change  makespan / baseline's - 1 in that cell, mean over the three kinds of schedule and
                 their seeds
policy_...       the same two for the policy with its own alpha and interval

The grid has alphas below the published 1 % for this reason: with beta = 1 + 1/n a completing
container keeps 1/(n + 1) of the machine, so a third job gains at most 1/3 (half of the cores
instead of a third) when both others complete. Where containers can use the whole machine, alpha is
compared with loss per machine-second, of which a job has 1 in all; all jobs soon fall below 1 % per
machine-second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from services.allocator.policies.flowcon.growth import Rules
from services.allocator.policies.flowcon.policy import LIVE
from tests.bench.flowcon_cluster import STATIC, completions, equal
from tests.bench.flowcon_jobs import LATE, SEED_SCHEDULE, Schedule, drawn, falling
from tests.bench.machine import Arm, Outcome, run
from tests.bench.report import finish, say

ALPHAS = (0.0003, 0.0005, 0.001, 0.003, 0.01, 0.03, 0.05, 0.10, 0.15)
PUBLISHED = 0.01  # the smallest of the published sweep
INTERVALS_S = (20.0, 30.0, 40.0, 50.0, 60.0)
NOISE, EACH = 0.02, int(os.environ.get("BENCH_SEEDS", "10"))
CHOOSING, SEEDS = range(EACH), range(10, 10 + EACH)
NOTHING = Arm(algorithm=False)
JOBS = (3, 10, 15)
POLICIES: dict[str, Rules | str] = {"flowcon": LIVE, "static": STATIC}
SCALES = (10, 20, 30, 50)  # machine-seconds in which the late job's loss falls

Times = tuple[dict[str, float], float]
"""Completion time in s of each job, and the makespan in s."""
Pair = tuple[Times, Times]
"""Times with the algorithm, and times of the baseline."""
Figures = dict[str, dict[str, float]]
Cells = dict[tuple[float, float], dict[str, float]]
"""Figures by alpha and interval."""
Done = Callable[[], None]
"""Advances the progress bar by one step."""


# ---------------------------------------------------------------- comparisons


def cut(pair: Pair, name: str) -> float:
    return 1 - pair[0][0][name] / pair[1][0][name]


def change(pair: Pair) -> float:
    return pair[0][1] / pair[1][1] - 1


def three(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the figures of the seed's schedule: means over the noise seeds."""
    cuts = {
        f"{name.partition('-')[2]}_cut": fmean(cut(pair, name) for pair in pairs)
        for name in pairs[0][0][0]
    }
    return cuts | {"makespan_change": fmean(map(change, pairs))}


def many(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the figures of drawn schedules: means over the seeds.

    `late`: the last mnist job to start.
    """
    cuts = [{name: cut(pair, name) for name in pair[0][0]} for pair in pairs]
    return {
        "late_cut": fmean(
            each[late] for each in cuts for late in [name for name in each if "mnist" in name][-1:]
        ),
        "best_cut": fmean(max(each.values()) for each in cuts),
        "worst_cut": fmean(min(each.values()) for each in cuts),
        "faster_share": fmean(c > 0 for each in cuts for c in each.values()),
        "mean_cut": fmean(
            1 - fmean(ours.values()) / fmean(theirs.values()) for (ours, _), (theirs, _) in pairs
        ),
        "makespan_change": fmean(map(change, pairs)),
        "makespan_worst": max(map(change, pairs)),
    }


# ---------------------------------------------------------------- 1. on the machine


def on_machine(schedule: Schedule, arm: Arm, seed: int) -> tuple[Pair, int]:
    """Return the times with an arm and without limits, and the number of passes of the arm."""
    ours, theirs = (run(schedule, each, seed, NOISE) for each in (arm, NOTHING))
    return (_times(ours), _times(theirs)), ours.passes


def _times(outcome: Outcome) -> Times:
    return outcome.completion_s, outcome.makespan_s


def seed_schedule(
    arm: Arm, seeds: Iterable[int] = SEEDS, schedule: Schedule = SEED_SCHEDULE
) -> dict[str, float]:
    runs = [on_machine(schedule, arm, seed) for seed in seeds]
    return three([pair for pair, _ in runs]) | {"passes": fmean(passes for _, passes in runs)}


def random_schedules(jobs: int, arm: Arm) -> dict[str, float]:
    runs = [on_machine(drawn(jobs, seed), arm, seed) for seed in SEEDS]
    return many([pair for pair, _ in runs]) | {"passes": fmean(passes for _, passes in runs)}


def grid(done: Done) -> Cells:
    """Return the figures of the grid, on the seeds that choose the best cell."""
    cells = {}
    for alpha in ALPHAS:
        for interval_s in INTERVALS_S:
            ours = Arm(rules=Rules(alpha=alpha, interval_s=interval_s))
            steady = seed_schedule(replace(ours, backoff=False), CHOOSING)
            cells[alpha, interval_s] = seed_schedule(ours, CHOOSING) | {
                "passes_no_backoff": steady["passes"]
            }
            done()
        row = "  ".join(f"{cells[alpha, i]['mnist-tf_cut']:+7.1%}" for i in INTERVALS_S)
        say(f"alpha {alpha:7.2%}, late job's cut by interval {INTERVALS_S}: {row}")
    return cells


def machine(rules: Rules, done: Done) -> Figures:
    found = {}
    for jobs in JOBS:
        for name, arm in arms(rules).items():
            figures = seed_schedule(arm) if jobs == 3 else random_schedules(jobs, arm)
            found[f"{jobs} jobs, {name}"] = told(f"{jobs} jobs, {name}", figures)
            done()
    return found


def by_curve(arm: Arm) -> dict[str, float]:
    """Return the cut of the late job if its loss falls faster, or as in the schedule."""
    lates = {scale: replace(LATE, loss=falling((2.2, scale), floor=0.10)) for scale in SCALES}
    return {
        f"{s} machine-s": seed_schedule(arm, schedule=(*SEED_SCHEDULE[:2], (80, late)))[
            "mnist-tf_cut"
        ]
        for s, late in lates.items()
    }


def arms(rules: Rules) -> dict[str, Arm]:
    ours = Arm(rules=rules)
    return {
        "flowcon": ours,
        "no algorithm": replace(ours, algorithm=False),
        "no update": replace(ours, update=False),
        "no back-off": replace(ours, backoff=False),
        "strict": replace(ours, soft=False),
        "defaults": Arm(),
        "1 % every 60 s": Arm(rules=Rules(alpha=PUBLISHED, interval_s=60.0)),
    }


# ---------------------------------------------------------------- 2. the policy


def policies(done: Done) -> Figures:
    found = {}
    for name, policy in POLICIES.items():
        for jobs in JOBS:
            pairs = []
            for seed in SEEDS:
                pairs.append(
                    _under_allocator(
                        SEED_SCHEDULE if jobs == 3 else drawn(jobs, seed), policy, seed
                    )
                )
                done()
            figures = three(pairs) if jobs == 3 else many(pairs)
            found[f"{jobs} jobs, {name}"] = told(f"policy: {jobs} jobs, {name}", figures)
    return found


def _under_allocator(schedule: Schedule, policy: Rules | str, seed: int) -> Pair:
    return completions(schedule, policy, seed), completions(schedule, equal, seed)


# ---------------------------------------------------------------- all parts


def told(name: str, figures: dict[str, float]) -> dict[str, float]:
    say(f"{name:28} " + "  ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    return {key: round(value, 4) for key, value in figures.items()}


def makespan(found: Figures) -> float:
    return fmean(found[f"{jobs} jobs, flowcon"]["makespan_change"] for jobs in JOBS)


def main() -> dict[str, Any]:
    with Progress(console=Console(stderr=True)) as progress:
        steps = len(ALPHAS) * len(INTERVALS_S) + len(JOBS) * (
            len(arms(Rules())) + len(POLICIES) * len(SEEDS)
        )
        bar = progress.add_task("schedules", total=steps)
        done = partial(progress.advance, bar)
        cells = grid(done)
        best = max(cells, key=lambda cell: cells[cell]["mnist-tf_cut"])
        rules = Rules(alpha=best[0], interval_s=best[1])
        say(f"best cell: alpha {rules.alpha:.2%}, interval {rules.interval_s:g} s")
        return figures(cells, rules, machine(rules, done), policies(done))


def figures(cells: Cells, rules: Rules, machine: Figures, policy: Figures) -> dict[str, Any]:
    flat = cells[Rules().alpha, Rules().interval_s]
    return {
        "late_job_cut": machine["3 jobs, flowcon"]["mnist-tf_cut"],
        "makespan_change": makespan(machine),
        "policy_late_job_cut": policy["3 jobs, flowcon"]["mnist-tf_cut"],
        "policy_makespan_change": makespan(policy),
        "late_job_cut_published_alphas": max(
            f["mnist-tf_cut"] for c, f in cells.items() if c[0] >= PUBLISHED
        ),
        "late_job_cut_defaults": machine["3 jobs, defaults"]["mnist-tf_cut"],
        "late_job_cut_by_curve": {
            name: round(cut, 4) for name, cut in by_curve(Arm(rules=rules)).items()
        },
        "best_cell": {"alpha": rules.alpha, "interval_s": rules.interval_s},
        "policy_cell": {"alpha": LIVE.alpha, "interval_s": LIVE.interval_s},
        "passes_defaults": {"backoff": flat["passes"], "no_backoff": flat["passes_no_backoff"]},
        "machine": machine,
        "policy": policy,
        "grid": {f"{a:g} x {i:g} s": round(f["mnist-tf_cut"], 4) for (a, i), f in cells.items()},
        "grid_passes": {
            f"{a:g} x {i:g} s": [f["passes"], f["passes_no_backoff"]] for (a, i), f in cells.items()
        },
    }


if __name__ == "__main__":
    finish(main())
