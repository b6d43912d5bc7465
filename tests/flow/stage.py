"""A running stack with one job, for tests of failures.

    async with stage(folder, settings) as scene:
        stranger = await scene.stranger_comes("node-2")
        await scene.submit()
        await scene.hear(TrainingResumed)

It has five places on two nodes, and a program that counts examples. A stranger is another user's
pod, which only sleeps. A place is a request of one core; what is requested decides what fits, and
strangers use no CPU. A task takes one place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import psutil

from services.cli.trial import NAMESPACE, Trial, trial
from services.local.cluster_spec import DataSource, TenantSpec
from services.local.controllers import pod_spec
from services.local.stack import Stack
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    JobFinished,
    Message,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)
from tests.trainer import fleet

JOB, EXAMPLES, BATCH, EPOCHS = "tiny", 250, 16, 60
PLACES = (
    "nodes:\n  - {name: node-1, cpu: 3, memory_gib: 12}\n  - {name: node-2, cpu: 2, memory_gib:"
    " 8}\n"
)
TASK = {"cpu": 1.0, "memory_gib": 2.0}
REQUEST: dict[str, Any] = {
    "job": JOB,
    "epochs": EPOCHS,
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 2},
    "workers": {"start": 1, "min": 1, "max": 2},
    "resources": {"chief": TASK, "ps": TASK, "worker": TASK},
    "policy": "config-manager",
    "consistency": "async",
    "max_staleness": "off",  # `counting.py` counts an update that is dropped, too
    "checkpoint": {"every_s": 2.0},
    "grace_s": 5.0,
}
QUICK = {
    "WEIR_ALLOCATOR_WINDOW_S": "0.3",
    "WEIR_ALLOCATOR_COOLDOWN_S": "0.5",
    "WEIR_ALLOCATOR_BACKOFF_S": "1",
    "WEIR_ALLOCATOR_BACKOFF_MAX_S": "1",
    "WEIR_ALLOCATOR_PAYBACK_FACTOR": (
        "-1000"
    ),  # every growth pays back: these tests are not about speed
    "WEIR_ALLOCATOR_SNAPSHOT_S": "0.5",
    "WEIR_LAUNCHER_UNSCHEDULABLE_S": "2",
}
PACE_S = 0.5  # s per batch; so slow that no job ends before its test has seen what it needs
PATIENCE_S, LOOK_S = 180.0, 0.1
GOES_S = 60.0  # s that killed processes have to disappear
SLEEP = ["sleep", "3600"]
PACED = 'os.environ.get("COUNTING_PACE")'
M = TypeVar("M", bound=Message)


class Scene:
    """One job on its own stack."""

    def __init__(self, watched: Trial, folder: Path) -> None:
        self.watched, self.folder = watched, folder
        self.more = ""  # text that a test appends to the program
        self._pods = f"{watched.stack.kube_url}/api/v1/namespaces"

    # ------------------------------------------------------------ the job

    async def submit(self, **fields: Any) -> None:
        """Submit the job with these fields of its request. A field that is `None` is left out."""
        self.pace(PACE_S)
        request = {**REQUEST, **fields}
        given = {name: value for name, value in request.items() if value is not None}
        await self.watched.submit(given, self._program())

    def _program(self) -> Path:
        """Return a copy of `counting.py` that reads its pace from a file in this stage's folder.

        Pods do not get the environment of the test.
        """
        text = (fleet.PROGRAMS / "counting.py").read_text()
        assert PACED in text
        path = self.folder / "counting.py"
        path.write_text(text.replace(PACED, repr(str(self.folder / "pace"))) + self.more)
        return path

    def pace(self, seconds: float) -> None:
        """Set the time in s that a worker waits before each batch from now on."""
        written = self.folder / "pace.new"
        written.write_text(str(seconds))
        written.rename(self.folder / "pace")

    async def counts(self, finished: JobFinished) -> list[int]:
        """Return how often each example was applied, according to the last checkpoint.

        Another process reads the checkpoint.
        """
        async with asyncio.timeout(
            PATIENCE_S
        ):  # its stream may be read slightly later than that of the job's end
            while not (
                last := [m for m in self.of(CheckpointSaved) if m.samples == finished.samples]
            ):
                await asyncio.sleep(LOOK_S)
        found: list[int] = fleet.read_counts(last[-1].path)["counts"]
        return found

    # ------------------------------------------------------------ messages

    def of(self, kind: type[M]) -> list[M]:
        return self.watched.of(kind)

    @property
    def now(self) -> int:
        """Return the number of messages received until now, for `hear` as `since`."""
        return len(self.watched.heard)

    async def hear(
        self,
        kind: type[M],
        fits: Callable[[M], bool] = lambda _: True,
        since: int = 0,
        within_s: float = PATIENCE_S,
    ) -> M:
        """Return the first message of a kind after `since` that `fits`.

        Raise `Failed` if none arrives within `within_s`.
        """

        def found() -> M | None:
            messages = (h.message for h in self.watched.heard[since:])
            return next((m for m in messages if isinstance(m, kind) and fits(m)), None)

        heard: M = await self.watched.until(found, within_s, kind.__name__)
        return heard

    @property
    def running(self) -> int:
        """Return the newest generation that resumed, or 0."""
        return max((m.generation for m in self.of(TrainingResumed)), default=0)

    def spec(self, generation: int) -> ClusterSpecPublished:
        return next(m for m in self.of(ClusterSpecPublished) if m.generation == generation)

    def rests(self) -> bool:
        """Return whether no change is in progress and all tasks of the running generation live.

        The result follows from the messages received until now. Messages of two streams may arrive
        in any order.
        """
        decisions = self.of(AllocationDecided)
        published = {m.generation for m in self.of(ClusterSpecPublished)}
        if not decisions or self.running not in published:
            return False
        newest = decisions[-1].generation
        settled = newest == self.running or newest in {
            m.generation for m in self.of(GenerationAbandoned)
        }
        gone = {m.pod for m in self.of(TaskExited)}
        return settled and not gone & {task.pod for task in self.spec(self.running).tasks}

    async def goes_on(self) -> ProgressReported:
        """Wait until the job rests, has made further steps and still rests. Return their report."""
        while True:
            await self.watched.until(self.rests, PATIENCE_S, "rest")
            generation, since = self.running, self.now
            before = [m.step for m in self.of(ProgressReported) if m.generation == generation]
            report = await self._further(generation, max(before, default=0), since)
            if report and self.rests() and await self._stands():
                return report

    async def _further(self, generation: int, step: int, since: int) -> ProgressReported | None:
        """Return a report of further steps, or None if the job no longer rests."""

        def found() -> ProgressReported | bool:
            messages = (
                h.message
                for h in self.watched.heard[since:]
                if isinstance(h.message, ProgressReported)
            )
            report = next(
                (m for m in messages if m.generation == generation and m.step > step), None
            )
            return report or not self.rests()

        report = await self.watched.until(found, PATIENCE_S, "a further step")
        return report if isinstance(report, ProgressReported) else None

    async def _stands(self) -> bool:
        """Return whether the cluster says that each pod of the running generation runs.

        The message about an exit may still be on its way.
        """
        phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in await self.pods()}
        return all(phases.get(task.pod) == "Running" for task in self.spec(self.running).tasks)

    # ------------------------------------------------------------ the cluster

    async def stranger_comes(self, node: str) -> str:
        """Create another user's pod that requests one core of a node. Return its name."""
        names = [p["metadata"]["name"] for p in await self.pods(NAMESPACE)]
        name = f"stranger-{len(names)}-{self.now}"
        spec = pod_spec(TenantSpec(node=node, cpu=1.0))
        spec["containers"][0]["command"] = SLEEP
        async with aiohttp.ClientSession(headers=self.watched.stack.kube_headers) as http:
            await http.post(self._pods, json={"metadata": {"name": NAMESPACE}})
            body = {"metadata": {"name": name}, "spec": spec}
            async with http.post(f"{self._pods}/{NAMESPACE}/pods", json=body) as answer:
                answer.raise_for_status()
        return name

    async def stranger_leaves(self, name: str) -> None:
        await self.watched.tenants.leave(name)

    async def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        return await self._list(f"{namespace}/pods")

    async def made_for_the_job(self) -> list[str]:
        """Return the names of the pods and services that Weir has created and that still exist."""
        found = [*await self.pods(), *await self._list("default/services")]
        return [
            body["metadata"]["name"]
            for body in found
            if "weir.dev/uid" in body["metadata"].get("labels", {})
        ]

    async def _list(self, path: str) -> list[dict[str, Any]]:
        async with (
            aiohttp.ClientSession(headers=self.watched.stack.kube_headers) as http,
            http.get(f"{self._pods}/{path}") as answer,
        ):
            items: list[dict[str, Any]] = (await answer.json())["items"]
            return items


@asynccontextmanager
async def stage(
    folder: Path,
    settings: dict[str, str] | None = None,
    places: str = PLACES,
    data_sources: Sequence[DataSource] = (),
) -> AsyncIterator[Scene]:
    file = folder / "cluster.yaml"
    file.write_text(places)
    async with (
        Stack(
            folder / "weir", file, {**QUICK, **(settings or {})}, data_sources=data_sources
        ) as stack,
        trial(stack) as watched,
    ):
        yield Scene(watched, folder)


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of processes of this stage that do not end within `GOES_S`.

    They have the stage's folder in their command or their environment.
    """
    end_s = time.monotonic() + GOES_S
    while (found := living(folder)) and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return found


def living(folder: Path) -> list[str]:
    return [
        " ".join(p.info["cmdline"] or [])
        for p in psutil.process_iter(["cmdline"])
        if _carries(p, str(folder))
    ]


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        living = process.status() != psutil.STATUS_ZOMBIE
        return living and any(
            mark in text for text in (*process.cmdline(), *process.environ().values())
        )
    except psutil.Error:
        return False
