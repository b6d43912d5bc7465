"""Two jobs, of which one ends: is the other decided once, to its final size?

`make bench-release` (20 minutes). Real nats-server, monitor, allocator and launcher and the
Kubernetes stand-in; trainers and kubelets are simulated (`release_trainers.py`). The allocator has
the settings of `weir up`, with shorter timers (`TIMERS`) so that a round takes seconds. The pods of
a job end within 1.5 s, which is longer than the stabilisation window here.

Two jobs of the default policy fill four nodes. When both have reported their speed, one ends at a
random time: half of these jobs succeed, the others are cancelled. Its pods end node by node. From
its end on, decisions about the other job are counted until there was none for BENCH_QUIET_S.

    decided_once     rounds with exactly one decision that changed its size or nodes
    final_at_once    rounds in which no later decision made it larger than the first one
    as_fast_as_alone rounds in which its final speed is at least 95 % of the final speed of such a
                     job that has the cluster for itself
    wait_s_...       from the end of the last pod of the ended job to the decision; negative: the
                     decision came earlier, because there was capacity for the final size

Environment: BENCH_ROUNDS (100), BENCH_STACKS (2: number of stacks that share the rounds),
BENCH_SEED (1), BENCH_QUIET_S (4), BENCH_RELEASE_S (the setting `release_s`; 0: no waiting),
BENCH_TENSORFLOW (0: number of rounds with real trainers and the timers of `weir up`, after the
simulated ones).
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiohttp
import msgspec

from services.cli.trial import Trial, trial
from services.cli.up import cluster_file
from services.local.stack import Stack
from shared.kube.objects import SELECTOR
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    JobFinished,
    ProgressReported,
    TrainingResumed,
)
from tests.bench import crowd
from tests.bench.release_programs import FULL, PLACES, REAL_ENDING, REAL_REQUEST, PacedPrograms
from tests.bench.release_trainers import BATCH, Kubelets, speed
from tests.bench.report import finish, percentile, say
from tests.bench.scale import watching

ROUNDS, STACKS = (
    int(os.environ.get("BENCH_ROUNDS", "100")),
    int(os.environ.get("BENCH_STACKS", "2")),
)
SEED, QUIET_S = int(os.environ.get("BENCH_SEED", "1")), float(os.environ.get("BENCH_QUIET_S", "4"))
REAL_QUIET_S = 45.0  # longer than every timer of the allocator
REAL_PATIENCE_S = 600.0
TENSORFLOW = int(os.environ.get("BENCH_TENSORFLOW", "0"))
PATIENCE_S, LOOK_S = float(os.environ.get("BENCH_PATIENCE_S", "90")), 0.1
NODES, CORES = 4, 4
NEARLY = 0.95
TIMERS = {
    "WEIR_ALLOCATOR_WINDOW_S": "0.5",
    "WEIR_ALLOCATOR_COOLDOWN_S": "0.5",
    "WEIR_ALLOCATOR_MAX_DELAY_S": "3",
    "WEIR_ALLOCATOR_BACKOFF_S": "1",
    "WEIR_ALLOCATOR_BACKOFF_MAX_S": "1",
}
RELEASE = (
    {"WEIR_ALLOCATOR_RELEASE_S": os.environ["BENCH_RELEASE_S"]}
    if "BENCH_RELEASE_S" in os.environ
    else {}
)
TASK = {"cpu": 1.0, "memory_gib": 1.0}
REQUEST: dict[str, Any] = {
    "epochs": 1000,
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 3},
    "workers": {"start": 1, "min": 1, "max": 12},
    "resources": {"chief": TASK, "ps": TASK, "worker": TASK},
    "consistency": "async",
    "grace_s": 5.0,
}
MOMENT_S = 0.0, 4.0
Ending = tuple[tuple[int, int], tuple[int, int], int]
ENDING: Ending = (1, 3), (2, 6), 1
"""Range of ps (minimum), range of workers (minimum), and extra workers, of the job that ends.

It occupies a quarter to two thirds of all cores, and the other job has the rest.
"""


class Round(msgspec.Struct, frozen=True):
    """Sizes (ps, workers) of the job that stays: before the other's end, and of later decisions."""

    before: tuple[int, int]
    after: tuple[tuple[int, int], ...]
    wait_s: float | None
    ended_by: str
    reasons: tuple[str, ...] = ()


def size(decision: AllocationDecided) -> tuple[int, int]:
    roles = [task.role for task in decision.tasks]
    return roles.count("ps"), roles.count("worker")


class Fact(NamedTuple):
    stored_s: float
    message: Any


class Trainers(Protocol):
    """The trainers of the jobs of a cluster."""

    def program(self, job: str) -> Path: ...

    def begin(self, job: str, uid: int) -> None:
        """Start training after the job was submitted."""

    def length(self, chance: random.Random, succeeds: bool) -> dict[str, Any]:
        """Return the fields of a request that set the length of its job.

        It depends on whether the job succeeds by itself or is cancelled.
        """

    async def finish(self, job: str) -> None:
        """Let the job succeed soon. Does nothing if the job ends by itself."""


class Cluster:
    """A stack and the messages received from it."""

    patience_s = PATIENCE_S

    def __init__(
        self, watched: Trial, trainers: Trainers, request: dict[str, Any], ending: Ending
    ) -> None:
        self.watched, self.trainers, self.request, self.ending = watched, trainers, request, ending

    def heard(self, kind: type[Any], job: str, since_s: float = 0.0) -> list[Fact]:
        """Return the messages of a kind about a job that were stored after `since_s`."""
        facts = [
            Fact(each.stored_s, each.message)
            for each in self.watched.heard
            if isinstance(each.message, kind)
        ]
        return [fact for fact in facts if fact.message.job == job and fact.stored_s > since_s]

    async def until(self, holds: Callable[[], Any], what: str) -> None:
        end_s = time.monotonic() + self.patience_s
        while not holds():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{what} did not come within {self.patience_s:g} s")
            if self.watched.broken.done():
                await self.watched.broken
            await asyncio.sleep(LOOK_S)

    async def submit(self, job: str, **fields: Any) -> None:
        uid, _ = await self.watched.submit(
            {**self.request, "job": job, **fields}, self.trainers.program(job)
        )
        self.trainers.begin(job, uid)

    async def end(self, job: str, *, succeeds: bool) -> float:
        """Let a job end, and return when it ended."""
        if succeeds:
            await self.trainers.finish(job)
        else:
            await self.watched.bus.publish(CancelRequested(job=job, request_id=f"{job}-ends"))
        await self.until(lambda: self.heard(JobFinished, job), f"the end of {job}")
        return self.heard(JobFinished, job)[0].stored_s

    def is_quiet(self, job: str, quiet_s: float) -> bool:
        """Return whether the job has not changed for `quiet_s`.

        That is, its last generation has resumed and reported, and there was no later decision.
        """
        decided, resumed = self.heard(AllocationDecided, job), self.heard(TrainingResumed, job)
        if not decided or not resumed:
            return False
        generation = decided[-1].message.generation
        reports = [
            each
            for each in self.heard(ProgressReported, job)
            if each.message.generation == generation
        ]
        last_s = max(decided[-1].stored_s, resumed[-1].stored_s)
        return bool(reports) and time.time() - max(last_s, reports[0].stored_s) > quiet_s

    def pods_of(self, job: str) -> dict[str, int]:
        """Return the number of pods of a job on each node."""
        last = {
            each.message.node: each.message
            for each in self.watched.heard
            if isinstance(each.message, CapacityChanged)
        }
        return {name: sum(own.job == job for own in seen.own) for name, seen in last.items()}

    def gone_s(self, job: str, since_s: float) -> float:
        """Return when the last node stopped listing pods of a job."""
        listed, gone_s = dict[str, bool](), 0.0
        for each in self.watched.heard:
            if isinstance(each.message, CapacityChanged):
                has = any(own.job == job for own in each.message.own)
                if each.stored_s > since_s and listed.get(each.message.node) and not has:
                    gone_s = each.stored_s
                listed[each.message.node] = has
        return gone_s


async def run_alone(cluster: Cluster, job: str, quiet_s: float) -> tuple[int, int]:
    """Return the final size of a job that has the cluster for itself."""
    await cluster.submit(job)
    await cluster.until(lambda: cluster.is_quiet(job, quiet_s), f"the final size of {job}")
    alone = size(cluster.heard(AllocationDecided, job)[-1].message)
    await clear(cluster, job)
    return alone


async def clear(cluster: Cluster, job: str) -> None:
    await cluster.end(job, succeeds=False)
    await cluster.until(lambda: not any(cluster.pods_of(job).values()), f"the pods of {job} to go")


async def completed_round(
    cluster: Cluster, number: int, chance: random.Random, quiet_s: float
) -> Round:
    """Run a round. After a timeout, return one without decisions."""
    try:
        return await run_round(cluster, number, chance, quiet_s)
    except TimeoutError as error:
        say(f"round {number} was not completed: {error}")
        for job in (f"ends-{number}", f"stays-{number}"):
            facts = [
                each.message
                for each in cluster.watched.heard
                if getattr(each.message, "job", "") == job
            ]
            for fact in [each for each in facts if not isinstance(each, ProgressReported)][-6:]:
                say(f"    {job}: {str(fact)[:300]}")
            if cluster.heard(AllocationDecided, job):
                await clear(cluster, job)
        return Round((0, 0), (), None, f"nothing: {error}")


async def run_round(cluster: Cluster, number: int, chance: random.Random, quiet_s: float) -> Round:
    ends, stays = f"ends-{number}", f"stays-{number}"
    succeeds = chance.random() < 0.5
    await cluster.submit(
        ends, **size_of_ending(cluster.ending, chance), **cluster.trainers.length(chance, succeeds)
    )
    await cluster.until(lambda: cluster.heard(AllocationDecided, ends), f"the start of {ends}")
    await cluster.submit(stays)
    await cluster.until(
        lambda: has_reported(cluster, ends) and has_reported(cluster, stays), "reports of both"
    )
    await asyncio.sleep(chance.uniform(*MOMENT_S))
    await cluster.until(lambda: not in_flight(cluster, stays), f"rest of {stays}")
    ended_s = await cluster.end(ends, succeeds=succeeds)
    await cluster.until(
        lambda: not any(cluster.pods_of(ends).values()), f"the pods of {ends} to go"
    )
    gone_s = cluster.gone_s(ends, ended_s)
    await cluster.until(
        lambda: time.time() - gone_s > quiet_s and cluster.is_quiet(stays, quiet_s), "quiet"
    )
    decided = cluster.heard(AllocationDecided, stays)
    later = [each for each in decided if each.stored_s > ended_s]
    found = Round(
        before=size(decided[-len(later) - 1].message),
        after=tuple(size(each.message) for each in later),
        wait_s=later[0].stored_s - gone_s if later else None,
        ended_by="success" if succeeds else "cancellation",
        reasons=tuple(each.message.reason for each in later),
    )
    await clear(cluster, stays)
    return found


def size_of_ending(ending: Ending, chance: random.Random) -> dict[str, Any]:
    """Return the ranges of ps and workers of the job that ends."""
    ps_min, workers_min = (chance.randint(*between) for between in ending[:2])
    return {
        "ps": {"start": ps_min, "min": ps_min, "max": ps_min},
        "workers": {"start": workers_min, "min": workers_min, "max": workers_min + ending[2]},
    }


def has_reported(cluster: Cluster, job: str) -> bool:
    return bool(cluster.heard(ProgressReported, job))


def in_flight(cluster: Cluster, job: str) -> bool:
    """Return whether training has not yet resumed after the last decision."""
    decided, resumed = cluster.heard(AllocationDecided, job), cluster.heard(TrainingResumed, job)
    return not resumed or resumed[-1].message.generation < decided[-1].message.generation


# ---------------------------------------------------------------- stacks


async def simulated(numbers: Sequence[int], seed: int) -> tuple[tuple[int, int], list[Round]]:
    """Run the rounds of one stack; return the size of a job alone, and the rounds."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, crowd.CLUSTER) as file,
    ):
        async with (
            Stack(Path(folder), file, {**TIMERS, **RELEASE}) as stack,
            trial(stack) as watched,
            aiohttp.ClientSession(stack.kube_url, headers=stack.kube_headers) as http,
        ):
            kubelets = Kubelets(http, watched, chance)
            async with watching(http, {"labelSelector": SELECTOR}, kubelets.on_event):
                await make_nodes(http)
                watched.bus.spawn(kubelets.listen())
                cluster = Cluster(watched, kubelets, REQUEST, ENDING)
                alone = await run_alone(cluster, f"alone-{seed}", QUIET_S)
                say(f"alone: {alone}")
                rounds = []
                for number in numbers:
                    rounds.append(await completed_round(cluster, number, chance, QUIET_S))
                    say(f"round {number}: {rounds[-1]}")
                return alone, rounds


async def make_nodes(http: aiohttp.ClientSession) -> None:
    for number in range(NODES):
        name = f"sim-{number}"
        room = {"cpu": str(CORES), "memory": "64Gi", "pods": "110"}
        status = {
            "allocatable": room,
            "capacity": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await crowd.said(http.post("/api/v1/nodes", json={"metadata": {"name": name}}))
        await crowd.said(
            http.patch(f"/api/v1/nodes/{name}/status", json={"status": status}, headers=crowd.MERGE)
        )


async def main() -> dict[str, Any]:
    shares = [range(first, ROUNDS, STACKS) for first in range(min(STACKS, ROUNDS))]
    works = [simulated(share, SEED + number) for number, share in enumerate(shares)]
    found = await asyncio.gather(*works)
    said = figures([(alone, each) for alone, rounds in found for each in rounds]) if ROUNDS else {}
    if TENSORFLOW:
        rounds = await real_rounds(TENSORFLOW, SEED)
        said |= {
            f"tensorflow_{name}": value
            for name, value in figures([(FULL, each) for each in rounds]).items()
        }
    return said


async def real_rounds(count: int, seed: int) -> list[Round]:
    """Run rounds with real trainers and the settings of `weir up`, with a program of known speeds.

    With unknown speeds a job may grow in two steps, because only the first step shows that the
    second one pays.
    """
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-") as folder,
        cluster_file(None, PLACES) as file,
    ):
        async with Stack(Path(folder) / "weir", file, RELEASE) as stack, trial(stack) as watched:
            cluster = Cluster(watched, PacedPrograms(Path(folder)), REAL_REQUEST, REAL_ENDING)
            cluster.patience_s = REAL_PATIENCE_S
            say(f"alone, with TensorFlow: {await run_alone(cluster, 'alone', REAL_QUIET_S)}")
            rounds = []
            for number in range(count):
                rounds.append(await completed_round(cluster, number, chance, REAL_QUIET_S))
                say(f"round {number} with TensorFlow: {rounds[-1]}")
            return rounds


def figures(found: Sequence[tuple[tuple[int, int], Round]]) -> dict[str, Any]:
    rounds = [each for _, each in found]
    waits = [each.wait_s for each in rounds if each.wait_s is not None] or [0.0]
    return {
        "rounds": len(rounds),
        "decided_once": sum(len(each.after) == 1 for each in rounds),
        "final_at_once": sum(is_final_at_once(each) for each in rounds),
        "as_fast_as_alone": sum(
            speed(*(each.after or (each.before,))[-1]) >= NEARLY * speed(*alone)
            for alone, each in found
        ),
        "wait_s_p50": percentile(waits, 0.5),
        "wait_s_p99": percentile(waits, 0.99),
    }


def is_final_at_once(found: Round) -> bool:
    if not found.after:
        return False
    first = found.after[0]
    return sum(first) > sum(found.before) and all(
        ps <= first[0] and workers <= first[1] for ps, workers in found.after
    )


if __name__ == "__main__":
    finish(asyncio.run(main()))
