"""A ps that loses three quarters of its CPU: no reaction, restart, Weir.

`make bench-hot-ps` (10 minutes). A job of ten million parameters, one ps, two workers. When it
trains, the benchmark reduces the CPU quota of the ps pod to a quarter, without changing the pod
object; another node has free capacity. Three arms, one after the other, each on a stack of its own,
all with the policy `static`:

    nothing   no reaction (`starved_s` longer than the job)
    restart   Weir notices it and moves the ps, with a restart of all tasks (`handover: restart`)
    weir      the same, make-before-break

`..._s`: from that moment to the end of the job. `pause_s`: Weir's, from the last update before to
the first after, by the clocks of the workers. DLRover reports 33, 29 and 21 minutes for a similar
case.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.messages import (
    AllocationDecided,
    JobFinished,
    ProgressReported,
    TaskReady,
    TrainingResumed,
)
from tests.bench.player import sizes
from tests.bench.report import NoLimits, finish_or_refuse, say
from tests.flow.kills import family

PROGRAM = Path(__file__).with_name("programs") / "tables.py"
CLUSTER = """nodes:
  - {name: wide, cpu: 1.0, memory_gib: 8}
  - {name: node, count: 2, cpu: 0.55, memory_gib: 5}
"""
BATCH = int(os.environ.get("BENCH_BATCH", "2048"))
QUARTER = 0.25
WARM_S, PATIENCE_S = float(os.environ.get("BENCH_WARM_S", "10")), 1800.0
STARVED_S = os.environ.get("BENCH_STARVED_S", "30")
NEVER = 1e9
REQUEST: dict[str, Any] = {
    "job": "tables",
    "epochs": 1,
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 1},
    "workers": {"start": 2, "min": 2, "max": 2},
    "resources": msgspec.to_builtins(sizes(chief=0.2, ps=0.5, worker=0.4)),
    "consistency": "async",
}
ARMS = {
    "nothing": ({"WEIR_ALLOCATOR_STARVED_S": str(NEVER)}, "make-before-break"),
    "restart": ({"WEIR_ALLOCATOR_STARVED_S": STARVED_S}, "restart"),
    "weir": ({"WEIR_ALLOCATOR_STARVED_S": STARVED_S}, "make-before-break"),
}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. `moved_s`: from the fault to the decision; `back_s`: to the first update after."""

    total_s: float
    moved_s: float | None
    back_s: float | None
    pause_s: float | None
    reason: str
    exact: bool


async def once(settings: dict[str, str], handover: str) -> Outcome:
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        asked = {"WEIR_ALLOCATOR_POLICY": "static", **settings}
        async with Stack(Path(folder), cluster, asked) as stack, trial(stack) as watched:
            await watched.submit({**REQUEST, "handover": handover}, PROGRAM)
            await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
            if not watched.enforced:
                raise NoLimits(
                    "CPU limits are not enforced on this machine: no ps can be short of it"
                )
            await asyncio.sleep(WARM_S)
            throttle(_pod_of_ps(watched))
            since_s = time.time()
            await watched.await_finish(PATIENCE_S)
            return _outcome(watched, since_s)


def _pod_of_ps(watched: Trial) -> str:
    ready: list[TaskReady] = [message for message in watched.of(TaskReady) if message.role == "ps"]
    return ready[0].pod_uid


def throttle(pod_uid: str) -> None:
    """Reduce the CPU quota of a pod's processes to a quarter; raise `NoLimits` if there is none."""
    supervisor = family(pod_uid).supervisor
    group = group_of(supervisor) if supervisor else None
    if group is None:
        raise NoLimits("the ps' control group is not found")
    file = group / "cpu.max" if (group / "cpu.max").exists() else group / "cpu.cfs_quota_us"
    quota, *period = file.read_text().split()
    if not quota.isdigit():
        raise NoLimits("the ps has no CPU quota")
    for burst in (group / "cpu.max.burst", group / "cpu.cfs_burst_us"):
        if burst.exists():
            burst.write_text("0")
    file.write_text(" ".join([str(round(int(quota) * QUARTER)), *period]))


def group_of(pid: int) -> Path | None:
    """Return the control group, version 1 or 2, that limits the CPU of a process, or None."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
        if (found / "cpu.max").exists() or (found / "cpu.cfs_quota_us").exists():
            return found
    return None


def _outcome(watched: Trial, since_s: float) -> Outcome:
    over: JobFinished = watched.of(JobFinished)[-1]
    decided: list[AllocationDecided] = [
        d for d in watched.of(AllocationDecided) if d.decided_s > since_s
    ]
    later = [h for h in watched.heard if h.stored_s > since_s]
    resumed = [(h.stored_s, h.message) for h in later if isinstance(h.message, TrainingResumed)]
    return Outcome(
        total_s=over.finished_s - since_s,
        moved_s=decided[0].decided_s - since_s if decided else None,
        back_s=resumed[0][0] - since_s if resumed else None,
        pause_s=resumed[0][1].pause_s if resumed else None,
        reason=decided[0].reason if decided else "",
        exact=over.counted == watched.of(ProgressReported)[-1].total_samples,
    )


async def main() -> dict[str, Any]:
    done = {}
    for name in os.environ.get("BENCH_ARMS", ",".join(ARMS)).split(","):
        done[name] = await once(*ARMS[name])
        say(f"{name:8} {done[name].total_s:6.1f} s, {msgspec.to_builtins(done[name])}")
    return result(done)


def result(done: dict[str, Outcome]) -> dict[str, Any]:
    totals = {f"{name}_s": arm.total_s for name, arm in done.items()}
    weir = done["weir"]
    return {
        **totals,
        "pause_s": weir.pause_s,
        "noticed_s": weir.moved_s,
        "ratio_to_nothing": weir.total_s / done["nothing"].total_s if "nothing" in done else None,
        "ratio_to_restart": weir.total_s / done["restart"].total_s if "restart" in done else None,
        "exactly_once": all(arm.exact for arm in done.values()),
        "cpu_limits_enforced": True,
    }


if __name__ == "__main__":
    finish_or_refuse(main())
