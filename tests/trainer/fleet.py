"""Real trainers in processes, and a test that acts as their launcher.

async with Fleet(bus, nats_url, folder, "counting.py") as fleet:
    await fleet.generation(1, ps=1, workers=1)
    await fleet.generation(2, ps=2, workers=2, previous=1)
    finished = await fleet.finished()

Nothing sleeps: every wait is for a message. At the end, the fleet checks that no process is left.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import psutil
from nats.js.api import DeliverPolicy

from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.messages import (
    AllocationDecided,
    CheckpointFailed,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobFinished,
    JobRequested,
    Message,
    Program,
    ProgressReported,
    Role,
    Span,
    TaskAddress,
    TaskReady,
    TrainingResumed,
)
from shared.runtime import process
from tests.trainer import warm_pods
from tests.trainer.warm_pods import WarmPod

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
WITHIN_S = 180.0
PACE_S, SLOW_S = (
    0.15,
    0.6,
)  # s per batch; the second while the next generation is prepared, however long that takes
LOOK_S = 0.5  # s between two checks of the pods during a wait for a message
VARIABLE = re.compile(r"(model|optimizer|states)/.*VARIABLE_VALUE$")
WIDE = Span(start=1, min=1, max=4)
Tasks = int | Iterable[int]
M = TypeVar("M", bound=Message)


class Stuck(AssertionError):
    """An expected event did not happen. The text has the ends of all logs."""


class Fleet:
    """The pods of one job.

    `ps` and `workers` are serials: `workers=2` means worker-0 and worker-1, `workers=[0, 2]` names
    them. `settings` are added to the trainer settings that a fleet needs; other fields are those of
    the job request. If `warm` is set, pods are forked from a process that has imported TensorFlow
    (`warm_pods`).
    """

    def __init__(
        self,
        bus: Bus,
        nats_url: str,
        folder: Path,
        program: str,
        settings: Mapping[str, float | str] = MappingProxyType({}),
        warm: bool = True,
        **fields: Any,
    ) -> None:
        self.warm = warm
        self.bus, self.nats_url, self.folder, self.settings = bus, nats_url, folder, settings
        self.program = PROGRAMS / program
        usual = {"epochs": 40, "batch": Span(start=16, min=16, max=16), "ps": WIDE, "workers": WIDE}
        self.fields: dict[str, Any] = {**usual, **fields}
        self.said: list[Any] = []
        self.pods: dict[str, asyncio.subprocess.Process | WarmPod] = {}
        self.expected: set[str] = set()
        self.used: dict[str, int] = {}
        self.specs: dict[int, ClusterSpecPublished] = {}
        self._news = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._groups: set[int] = set()

    # ------------------------------------------------------------ start and stop

    async def __aenter__(self) -> Fleet:
        self.folder.mkdir(parents=True)
        if self.warm:
            await warm_pods.start_warm_process(environ())
        self.pace(PACE_S)
        self.request = await self._submit()
        for filters in (["weir.task.>", "weir.training.>"], ["weir.job.finished.>"]):
            self._tasks.append(asyncio.create_task(self._listen(filters)))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._stop()
            left = self._left()
            assert not left, f"processes outlived their pod: {left}"
        finally:
            for group in self._groups:
                _kill_group(group)
            await process.cancel_tasks(*self._tasks)

    async def _submit(self) -> JobRequested:
        body = self.program.read_bytes()
        digest = "sha256-" + hashlib.sha256(body).hexdigest()
        await (await self.bus.program_store()).put(digest, body)
        program = Program(name=self.program.name, digest=digest)
        request = JobRequested(job="tiny", program=program, **self.fields)
        decided = AllocationDecided(
            **_job(1),
            revision=1,
            request=request,
            tasks=(),
            batch=request.batch.start,
            reason="test",
        )
        await self.bus.publish(decided)
        return request

    async def _stop(self) -> None:
        """Terminate every pod, as a kubelet does, and wait until all have ended."""
        for pod in self.pods.values():
            if pod.returncode is None:
                pod.terminate()
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(pod.wait() for pod in self.pods.values()))

    def _left(self) -> list[str]:
        """Return the commands of our pods' processes that still run after 60 s."""
        mine = [p for p in psutil.process_iter() if _group(p.pid) in self._groups]
        _, alive = psutil.wait_procs([p for p in mine if _lives(p)], timeout=60)
        return [" ".join(p.cmdline()) for p in alive if _lives(p)]

    # ------------------------------------------------------------ the launcher's part

    async def generation(
        self, number: int, *, ps: Tasks, workers: Tasks, previous: int | None = None, chief: int = 0
    ) -> TrainingResumed:
        """Run a whole hand-over. Return when the generation has resumed."""
        await self.propose(number, ps=ps, workers=workers, previous=previous, chief=chief)
        if self.request.handover == "make-before-break":
            await self.prepared(number)
        await self.order(number, previous)
        return await self.resumed(number)

    async def propose(
        self, number: int, *, ps: Tasks, workers: Tasks, previous: int | None = None, chief: int = 0
    ) -> None:
        """Start the pods that are missing and publish the spec as soon as all are ready."""
        self._hurry(PACE_S, SLOW_S)
        names = [f"chief-{chief}", *_names("ps", ps), *_names("worker", workers)]
        ready = list(await asyncio.gather(*(self.pod(name) for name in names)))
        spec = ClusterSpecPublished(
            **_job(number),
            revision=number,
            request=self.request,
            tasks=tuple(self._addresses(ready)),
            batch=self.request.batch.start,
            previous=previous,
        )
        self.specs[number] = spec
        await self.bus.publish(spec)

    async def pod(self, name: str) -> TaskReady:
        """Start a pod unless it exists. Return its `TaskReady`."""
        if name not in self.pods:
            await self._start(name)
        return await self.until(TaskReady, lambda m: m.pod == name)

    async def prepared(self, number: int) -> None:
        for task in self.specs[number].tasks:
            said = await self.until(
                GenerationPrepared, lambda m, pod=task.pod: m.generation == number and m.pod == pod
            )
            assert said.error is None, said.error

    async def order(self, number: int, previous: int | None) -> None:
        self._hurry(SLOW_S, PACE_S)
        await self.bus.publish(HandOverOrdered(**_job(number), previous=previous))

    async def resumed(self, number: int) -> TrainingResumed:
        fact = await self.until(TrainingResumed, lambda m: m.generation == number)
        self.used = {task.pod: task.port for task in self.specs[number].tasks}
        return fact

    async def abandon(self, number: int) -> None:
        await self.bus.publish(GenerationAbandoned(**_job(number), reason="test"))

    async def kill(self, name: str) -> None:
        """Kill all processes of a pod at once, as if its node were lost."""
        self.expected.add(name)
        _kill_group(self.pods[name].pid)
        async with asyncio.timeout(WITHIN_S):
            await self.pods[name].wait()

    def kill_newest_child(self, name: str) -> None:
        """Kill the process of the generation that is being prepared. The pod stays."""
        fork_server = next(
            p
            for p in psutil.Process(self.pods[name].pid).children()
            if "fork_server" in " ".join((p.name(), *p.cmdline()))
        )
        max(fork_server.children(), key=lambda p: p.create_time()).kill()

    async def left(self, name: str) -> int:
        """Wait until a pod exits by itself. Return its exit code."""
        async with asyncio.timeout(WITHIN_S):
            return await self.pods[name].wait()

    def pace(self, seconds: float) -> None:
        """Set the time in s that a worker waits before each batch from now on."""
        self._write("pace", str(seconds))

    def _hurry(self, before: float, after: float) -> None:
        """Change the pace, unless the test has set its own."""
        if (self.folder / "pace").read_text() == str(before):
            self.pace(after)

    def hang(self, where: str) -> None:
        """Set what hangs in `hanging.py` from now on; "-" is nothing, and releases what hangs."""
        self._write("hang", where)

    def _write(self, name: str, text: str) -> None:
        written = self.folder / f"{name}.new"
        written.write_text(text)
        written.rename(self.folder / name)

    # ------------------------------------------------------------ messages

    async def finished(self) -> JobFinished:
        """Wait for the end of the job and the checkpoint before it. Return the end.

        The checkpoint may arrive later, because it is in another stream.
        """
        finished = await self.until(JobFinished)
        async with asyncio.timeout(WITHIN_S):
            while finished.outcome == "succeeded" and not self._saved(finished.samples):
                await self._more()
        return finished

    def _saved(self, samples: int) -> bool:
        return any(isinstance(m, CheckpointSaved) and m.samples >= samples for m in self.said)

    async def drained(self, number: int) -> CheckpointSaved:
        return await self.until(CheckpointSaved, lambda m: m.generation == number and m.final)

    async def steps(self, more: int, generation: int) -> ProgressReported:
        """Wait until a generation has made this many more updates."""
        self._hurry(SLOW_S, PACE_S)
        seen = [
            m.step
            for m in self.said
            if isinstance(
                m, ProgressReported | CheckpointSaved | CheckpointFailed | TrainingResumed
            )
        ]
        goal = max(seen, default=0) + more
        return await self.until(
            ProgressReported, lambda m: m.generation == generation and m.step >= goal
        )

    async def until(self, kind: type[M], fits: Callable[[M], bool] = lambda _: True) -> M:
        """Return the first message of a kind that fits, old or new. Raise `Stuck` if none comes."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    for message in self.said:
                        if isinstance(message, kind) and fits(message):
                            return message
                    self._complain(kind)
                    await self._more()
        except TimeoutError:
            raise Stuck(f"{kind.__name__} was not said\n{self.logs()}") from None

    async def _more(self) -> None:
        """Wait until a message arrives, or until it is time to check the pods again."""
        seen = len(self.said)
        try:
            async with asyncio.timeout(LOOK_S), self._news:
                await self._news.wait_for(lambda: len(self.said) > seen)
        except TimeoutError:
            return

    def _complain(self, kind: type[Message]) -> None:
        """Raise `Stuck` at once if the job is over or pods have died.

        No such message can come then.
        """
        over = [m for m in self.said if isinstance(m, JobFinished)]
        if over and kind is not JobFinished:
            raise Stuck(f"the job is over before {kind.__name__}: {over[0]}\n{self.logs()}")
        dead = {
            n: p.returncode
            for n, p in self.pods.items()
            if p.returncode is not None and n not in self.expected
        }
        if dead and not over:
            raise Stuck(f"pods died: {dead}\n{self.logs()}")

    async def _listen(self, filters: list[str]) -> None:
        async for heard in self.bus.tail(filters, deliver=DeliverPolicy.ALL):
            async with self._news:
                self.said.append(heard.message)
                self._news.notify_all()

    def logs(self) -> str:
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"---- {path.name}\n{path.read_text()[-2500:]}" for path in found)

    def counts(self, at: CheckpointSaved | None = None) -> dict[str, Any]:
        """Return how often each example was applied, according to a checkpoint (default: the last).

        Another process reads the checkpoint.
        """
        saved = at or [m for m in self.said if isinstance(m, CheckpointSaved)][-1]
        return read_counts(saved.path)

    def final_weights(self) -> dict[str, bytes]:
        """Return the bytes of every variable of the model and the optimizer in the last
        checkpoint.
        """
        import tensorflow as tf

        saved = [m for m in self.said if isinstance(m, CheckpointSaved)][-1]
        reader = tf.train.load_checkpoint(saved.path)
        names = [name for name in reader.get_variable_to_shape_map() if VARIABLE.match(name)]
        return {name: reader.get_tensor(name).tobytes() for name in sorted(names)}

    # ------------------------------------------------------------ pods

    async def _start(self, name: str) -> None:
        role, serial = name.split("-")
        mine = {
            "nats_url": self.nats_url,
            "trainer_job": "tiny",
            "trainer_uid": "1",
            "trainer_pod": name,
            "trainer_pod_uid": name,
            "trainer_role": role,
            "trainer_serial": serial,
            "trainer_ports": "0,0",
            "trainer_checkpoint_dir": str(self.folder / "checkpoints"),
            "trainer_progress_s": "0.1",
            "trainer_peer_grace_s": "30",
            # After the loss of a task, a stopping pod waits this long for another generation.
            "trainer_grace_s": "5",
        }
        for field, value in self.settings.items():
            mine[field if field in Settings.UNPREFIXED else f"trainer_{field}"] = str(value)
        settings = {f"WEIR_{k.upper()}": v for k, v in mine.items()}
        log = self.folder / f"{name}.log"
        environment = {**environ(), **settings, "COUNTING_PACE": str(self.folder / "pace")}
        if self.warm:
            self.pods[name] = warm_pods.start_pod(environment, log)
        else:
            self.pods[name] = await _start_anew(environment, log)
        self._groups.add(self.pods[name].pid)

    def _addresses(self, ready: list[TaskReady]) -> Iterable[TaskAddress]:
        """Yield the addresses, each with the port that the running generation does not use."""
        index = {"chief": 0, "ps": 0, "worker": 0}
        for task in ready:
            port = next(p for p in task.ports if p != self.used.get(task.pod))
            yield TaskAddress(
                role=task.role, index=index[task.role], pod=task.pod, host=task.host, port=port
            )
            index[task.role] += 1


async def _start_anew(environment: dict[str, str], log: Path) -> asyncio.subprocess.Process:
    with log.open("w") as output:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.trainer"),
            env=environment,
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
        )


def _names(role: Role, tasks: Tasks) -> list[str]:
    return [f"{role}-{serial}" for serial in (range(tasks) if isinstance(tasks, int) else tasks)]


def _job(generation: int) -> dict[str, Any]:
    return {"job": "tiny", "uid": 1, "generation": generation}


def read_counts(path: str) -> dict[str, Any]:
    """Return what `read_counts.py` finds in a checkpoint, in a process of its own."""
    command = [sys.executable, str(PROGRAMS / "read_counts.py"), path]
    read = subprocess.run(
        command, capture_output=True, text=True, env=environ(), timeout=WITHIN_S, check=False
    )
    assert read.returncode == 0, read.stderr
    found: dict[str, Any] = json.loads(read.stdout)
    return found


def environ() -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "GRPC_FAIL_FAST": "use_caller"}


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
