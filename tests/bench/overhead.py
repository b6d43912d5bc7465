"""Measure the overhead of Weir while nothing changes: `make bench-overhead` (about 7 minutes).

One job twice on one node, with the same limits: with Weir, and as a plain loop after TensorFlow's
guide. Both exist all the time; one is frozen while the other is measured, in alternation (A B, B A,
...), so that changes in the machine's speed affect both. `ratio`: the median over the alternations
of Weir's examples per second divided by those of the plain loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from services.cli import demo
from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.console.report import runs
from services.local.stack import Stack
from shared.messages import ProgressReported
from tests.bench import hand, handwritten, plain
from tests.bench.player import NODE, PATIENCE_S, Player, sizes
from tests.bench.report import NoLimits, finish_or_refuse, median, say

PROGRAM = demo.JOBS / "clicks.py"
ALTERNATIONS = int(os.environ.get("BENCH_ALTERNATIONS", "8"))
CLUSTER = f"nodes:\n  - {{name: {NODE}, cpu: 4, memory_gib: 40}}\n"  # for both; one runs at a time
MEASURED_S, SETTLE_S = float(os.environ.get("BENCH_STEADY_S", "20")), 3.0
PS, WORKERS = 1, 2
SIZES = sizes(chief=0.3, ps=0.5, worker=0.5)
TASKS = [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
REQUEST = {
    "job": "clicks",
    "epochs": 1000,
    "batch": {"start": plain.BATCH, "min": plain.BATCH, "max": plain.BATCH},
    "ps": {"start": PS, "min": PS, "max": PS},
    "workers": {"start": WORKERS, "min": WORKERS, "max": WORKERS},
}


class Side:
    """The processes in the cluster that belong to one of the two jobs."""

    def __init__(self, stack: Stack, mark: str) -> None:
        cluster = psutil.Process(stack.parts["cluster"].process.pid)  # type: ignore[union-attr]
        self._pods = [p for p in cluster.children(recursive=True) if mark in " ".join(p.cmdline())]
        self.processes = {q.pid: q for p in self._pods for q in (p, *p.children(recursive=True))}

    def cpu_by_role(self) -> dict[str, float]:
        """Return the CPU seconds that the tasks of each role have used."""
        used = dict[str, float]()
        for process, role in self._roles().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[role] = used.get(role, 0.0) + times.user + times.system
        return used

    def _roles(self) -> dict[int, tuple[psutil.Process, str]]:
        """Return each process with the role of its task; processes that have ended are left out."""
        found = dict[int, tuple[psutil.Process, str]]()
        for pod in self._pods:
            with contextlib.suppress(psutil.NoSuchProcess):
                role = pod.environ().get("WEIR_TRAINER_ROLE") or pod.cmdline()[-2]
                for process in (pod, *pod.children(recursive=True)):
                    found[process.pid] = process, role
        return found

    def send(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


async def main() -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, CLUSTER) as cluster,
    ):
        async with (
            Stack(Path(folder), cluster, services=("launcher",)) as stack,
            trial(stack) as watched,
        ):
            progress = await _plain(stack, Path(folder) / "plain")
            other = Side(stack, "tests.bench.plain")
            other.send(signal.SIGSTOP)
            await _weir(watched)
            ours = Side(stack, "services.trainer")
            ours.send(signal.SIGSTOP)
            sides = {
                "weir": (ours, lambda a, b: _speed(watched, a, b)),
                "plain": (other, lambda a, b: speed_between(progress, a, b)),
            }
            return result(
                [await _alternation(sides, number) for number in range(ALTERNATIONS)], watched
            )


async def _plain(stack: Stack, folder: Path) -> Path:
    """Start the plain loop, and wait until it trains; return the file with its progress."""
    folder.mkdir()
    counts = {"chief": 1, "ps": PS, "worker": WORKERS}
    handwritten.write(folder / "cluster.json", hand.cluster(counts))
    command = ["python", "-m", "tests.bench.plain", str(folder), str(PROGRAM)]
    await hand.pods(stack, command, TASKS, SIZES)
    await await_progress(folder / "progress")
    return folder / "progress"


async def await_progress(progress: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not _points(progress):
            await asyncio.sleep(0.1)


async def _weir(watched: Trial) -> None:
    uid, request = await watched.submit(REQUEST, PROGRAM)
    await Player(watched, uid, request, SIZES).decide(PS, WORKERS)
    if not watched.enforced:
        raise NoLimits("CPU limits are not enforced on this machine: the comparison means nothing")
    await watched.until(lambda: watched.of(ProgressReported), PATIENCE_S, "progress")


async def _alternation(sides: dict[str, Any], number: int) -> dict[str, float]:
    """Measure each side once while the other is frozen; the order alternates."""
    order = list(sides) if number % 2 == 0 else list(sides)[::-1]
    speeds = {name: await _alone(*sides[name]) for name in order}
    say(
        f"{number + 1}/{ALTERNATIONS} "
        + ", ".join(f"{name} {speeds[name]:,.0f}/s" for name in sides)
    )
    return speeds


async def _alone(side: Side, speed: Any) -> float:
    side.send(signal.SIGCONT)
    await asyncio.sleep(SETTLE_S)
    began = time.time()
    await asyncio.sleep(MEASURED_S)
    ended = time.time()
    await asyncio.sleep(1.5)  # so that there is a report after the end
    side.send(signal.SIGSTOP)
    return float(speed(began, ended))


def _speed(watched: Trial, from_s: float, to_s: float) -> float:
    return runs.mean_speed(watched.of(ProgressReported), from_s, to_s)


def _points(progress: Path) -> list[tuple[float, float]]:
    lines = progress.read_text().splitlines() if progress.exists() else []
    words = [line.split() for line in lines]
    return [(float(at), float(count)) for at, count in words if float(count) > 0]


def speed_between(progress: Path, from_s: float, to_s: float) -> float:
    """Return the examples per second between the first and the last point in this time."""
    inside = [p for p in _points(progress) if from_s <= p[0] <= to_s]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def result(done: list[dict[str, float]], watched: Trial) -> dict[str, Any]:
    ratios = [d["weir"] / d["plain"] for d in done]
    return {
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "weir_samples_per_s": median(d["weir"] for d in done),
        "plain_samples_per_s": median(d["plain"] for d in done),
        "alternations": len(done),
        "measured_s": MEASURED_S,
        "parameters": watched.of(ProgressReported)[-1].profile.parameters,
        "cpu_limits_enforced": True,
    }


if __name__ == "__main__":
    finish_or_refuse(main())
