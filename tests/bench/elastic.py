"""Compare the same job static and elastic, beside the same pods of other users.

`make bench-elastic` (about 18 minutes). Four nodes of half a core: two cores in all, no more than
the machine has. Other users' pods use three of the nodes until 20 % of the static time; the job
starts on the fourth. Static keeps its size; elastic (config-manager) grows. Three repetitions,
medians. Enforced CPU limits are required, because a static job that can use free CPU is not static.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from services.cli import demo
from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.console.report import runs as runs_module
from services.local.stack import Stack
from shared.messages import JobFinished, ProgressReported, TrainingResumed
from tests.bench.report import NoLimits, finish_or_refuse, median, say

REPETITIONS = int(os.environ.get("BENCH_REPETITIONS", "3"))
EPOCHS = int(os.environ.get("BENCH_EPOCHS", "140"))
LEAVE_AT = 0.2
BUSY_SHARE = 0.75
PATIENCE_S = 1200.0
PICTURE = Path(os.environ.get("BENCH_PICTURE", "bench-elastic.png"))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    run: runs_module.Run
    utilisation: float
    accuracy: float
    exact: bool
    generations: int


async def once(policy: str, leave_s: float | None) -> Outcome:
    """Run the job, and delete the other users' pods `leave_s` after submission.

    If it is None, delete them when 20 % of the examples are applied.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, demo.CLUSTER) as cluster,
    ):
        async with Stack(Path(folder), cluster) as stack, trial(stack) as watched:
            await _play(watched, policy, leave_s)
            return _outcome(policy, watched)


async def _play(watched: Trial, policy: str, leave_s: float | None) -> None:
    names = [await watched.tenants.come(node, cpu) for node, cpu in demo.STRANGERS]
    await watched.submit(
        {**demo.REQUEST, "epochs": EPOCHS, "policy": policy}, demo.JOBS / "digits.py"
    )
    await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
    if not watched.enforced:
        raise NoLimits("CPU limits are not enforced on this machine: nothing to compare")
    await watched.until(lambda: _due(watched, leave_s), PATIENCE_S, "a fifth of the way")
    for name in names:
        await watched.tenants.leave(name)
    await watched.await_finish(PATIENCE_S)


def _due(watched: Trial, leave_s: float | None) -> bool:
    if leave_s is not None:
        return time.time() >= watched.submitted_s + leave_s
    reports = watched.of(ProgressReported)
    return bool(reports) and reports[-1].samples >= LEAVE_AT * reports[-1].total_samples


def _outcome(policy: str, watched: Trial) -> Outcome:
    over: JobFinished = watched.of(JobFinished)[-1]
    reports = watched.of(ProgressReported)
    return Outcome(
        run=watched.as_run("elastic" if policy == "config-manager" else policy, EPOCHS),
        utilisation=runs_module.utilisation(watched.cpu, watched.submitted_s, over.finished_s),
        accuracy=over.metrics["accuracy"],
        exact=over.counted == reports[-1].total_samples,
        generations=len(watched.of(TrainingResumed)),
    )


async def main() -> dict[str, Any]:
    static, elastic = list[Outcome](), list[Outcome]()
    for number in range(REPETITIONS):
        known = median([o.run.total_s for o in static]) * LEAVE_AT if static else None
        static.append(await once("static", known))
        say(f"{number + 1}/{REPETITIONS} static  {_line(static[-1])}")
        elastic.append(await once("config-manager", static[-1].run.total_s * LEAVE_AT))
        say(f"{number + 1}/{REPETITIONS} elastic {_line(elastic[-1])}")
    runs_module.draw_runs(
        [static[-1].run, elastic[-1].run], PICTURE, "digits: static and elastic, both measured"
    )
    say(f"the picture: {PICTURE}")
    return result(static, elastic)


def _line(o: Outcome) -> str:
    return (
        f"{o.run.total_s:6.1f} s, utilisation {o.utilisation:.0%}, accuracy {o.accuracy:.3f}, exact"
        f" {o.exact}"
    )


def result(static: list[Outcome], elastic: list[Outcome]) -> dict[str, Any]:
    static_s, elastic_s = (median(o.run.total_s for o in runs) for runs in (static, elastic))
    both = {"static": static, "elastic": elastic}
    figures_ = {
        "static_s": static_s,
        "elastic_s": elastic_s,
        "cut": 1.0 - elastic_s / static_s,
        "ideal_cut": runs_module.ideal_cut(BUSY_SHARE, LEAVE_AT),
        "exactly_once": all(o.exact for runs in both.values() for o in runs),
        "generations": max(o.generations for o in elastic),
        "cpu_limits_enforced": True,
    }
    for name, runs in both.items():
        figures_[f"utilisation_{name}"] = median(o.utilisation for o in runs)
        figures_[f"epoch_s_{name}"] = median(median(o.run.epoch_s) for o in runs)
        figures_[f"accuracy_{name}"] = median(o.accuracy for o in runs)
    return figures_


if __name__ == "__main__":
    finish_or_refuse(main())
