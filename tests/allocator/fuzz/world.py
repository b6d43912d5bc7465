"""A world in which events occur at random, driven by a string of bytes.

It has up to four jobs in two namespaces, on up to five nodes. Two bytes are one step: the event,
and its object. Pods appear, are listed and are removed late and in any order; reports may be
nonsense; the clock jumps. Numbers have any size: a message reaches the fold as a service reads it,
or not at all.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from services.allocator.admission.requests import answer_change, unanswered_changes
from services.allocator.admission.validation import reasons_against
from services.allocator.decide import Decisions, decide, prepare_tables
from services.allocator.pod_policy import ALLOW_ALL
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.state import State, apply
from shared.bus import subjects
from shared.messages import (
    Affinity,
    AllocationDecided,
    Bounds,
    CancelRequested,
    CapacityChanged,
    Change,
    ChangeRequested,
    FieldRequirement,
    GenerationAbandoned,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRequested,
    LabelRequirement,
    Message,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    OwnPod,
    Program,
    ProgressReported,
    Resources,
    ResumeRequested,
    RoleResources,
    Span,
    SuspendRequested,
    Taint,
    TaskExited,
    TaskPlan,
    TaskUsage,
    Toleration,
    TrainingResumed,
)
from tests.allocator.fuzz.extremes import odd, read

CORES, DEVICES, BATCHES = (8.0, 4.0, 2.0, 0.0, 3.0), (0, 0, 2, 1), ((32, 32), (16, 64), (64, 64))
EXITS = (
    (137, "Evicted"),
    (None, "NodeLost"),
    (137, "OOMKilled"),
    (1, "Error"),
    (0, "Completed"),
    (None, "Deleted"),
)
SPEEDS, LOSSES = (
    (100.0, -5.0, 0.0, math.nan, math.inf, 1e-300, 1e300),
    (1.0, math.nan, -math.inf, 0.0, -3.0),
)
TOTALS, JUMPS = (1_000_000, 0, 1), (-1e6, -5.0, 1e6, 3600.0, 1e9)
SPACES = ("default", "other")
RARE = 80
"""Rare events need a byte below this, of 256."""
POOLS = ({"pool": "a"}, {"pool": "b", "zone": "1"}, {"zone": "2"}, {})
TAINTS = (
    (),
    (Taint(key="team", value="a"),),
    (Taint(key="team", value="b", effect="NoExecute"),),
    (Taint(key="team", value="a"), Taint(key="spot", effect="PreferNoSchedule")),
)
TEAM_A = Toleration(key="team", value="a")
CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"node_selector": {"pool": "a"}},
    {"tolerations": (TEAM_A,)},
    {"node_selector": {"pool": "b"}, "tolerations": (Toleration(operator="Exists"),)},
    {
        "affinity": Affinity(
            node_affinity=NodeAffinity(
                required_during_scheduling_ignored_during_execution=NodeSelector(
                    node_selector_terms=(
                        NodeSelectorTerm(
                            match_expressions=(
                                LabelRequirement(key="zone", operator="In", values=("1", "2")),
                            )
                        ),
                        NodeSelectorTerm(
                            match_fields=(FieldRequirement(operator="In", values=("n0",)),)
                        ),
                    )
                )
            )
        ),
        "tolerations": (Toleration(key="team", operator="Exists", effect="NoExecute"),),
    },
)
"""The node settings of requests in a world with pools."""
Pod = tuple[str, str]
"""The key of the job and the name of the pod."""


class World:
    """A simulated cluster and the state of an allocator.

    `decided`: the last decisions, and `before`: the state that they are based on. `policies`: jobs
    name them in turn ("": the cluster's). `pools`: nodes have labels and changing taints, and jobs
    choose among them.
    """

    def __init__(
        self, rules: Rules, shape: bytes, policies: Sequence[str] = ("",), *, pools: bool = False
    ) -> None:
        self.pools = pools
        if pools:
            rules = replace(rules, pod_rules=ALLOW_ALL)
        self.rules, self.now, self.sequence = rules, 1000.0, 0
        self.state, self.before, self.decided = State(), State(), Decisions()
        self.sizes = {f"n{i}": node_size(byte) for i, byte in enumerate(shape[:4]) if byte < 248}
        self.policies, self.strangers = policies, dict[str, float]()
        self.pods: dict[Pod, TaskPlan] = {}
        self.asked, self.old = list(shape[4:]), list[Message]()
        for name in self.sizes:
            self.look(name)
        self.accept(0)

    def hear(self, said: Message) -> None:
        """Fold a message if a service can read it; ignore it otherwise, as a dead letter."""
        message = read(said, subjects.encode_message(said))
        if message is None:
            return
        self.sequence += 1
        self.state = apply(self.state, message, "weir", self.sequence, self.now)
        self.old.append(message)

    def step(self, what: int, whom: int) -> None:
        self.now += 1.0
        STEPS[what % len(STEPS)](self, whom)
        self.decide()

    def decide(self) -> None:
        self.before = self.state
        self.state = prepare_tables(self.state, self.rules)
        self.decided = decide(self.state, self.now, self.rules, self.decided.pending_changes)
        for action in self.decided.actions:
            self.hear(action)

    # ------------------------------------------------------------ events

    def later(self, whom: int) -> None:
        self.now += whom

    def accept(self, whom: int) -> None:
        if self.asked and len(self.state.jobs) < 4:
            self.sequence += 1
            asked = request(f"job-{self.sequence}", self.asked.pop(0), whom)
            asked = replace(asked, policy=self.policies[self.sequence % len(self.policies)] or None)
            if self.pools:
                asked = replace(asked, **CHOICES[whom % len(CHOICES)])
            self.accept_request(odd(asked, seed(whom, self.sequence)) if 0 < whom < RARE else asked)

    def accept_request(self, asked: JobRequested | None) -> None:
        """Accept a request unless it is refused."""
        if asked is not None and not reasons_against(asked, self.rules):
            name = {"job": asked.job, "namespace": asked.namespace}
            self.hear(JobAccepted(**name, uid=self.sequence, request=asked, accepted_s=self.now))

    def settle(self, whom: int) -> None:
        """Carry out every decision: make the pods as wanted, resume, and publish every node."""
        wanted = dict(self.wanted())
        gone = [job.exits for job in self.state.jobs.values()]
        self.pods = {
            pod: task for pod, task in wanted.items() if not any(pod[1] in exits for exits in gone)
        }
        for job in list(self.state.jobs.values()):
            if job.pending_generation is not None:
                self.resumed(job)
        for name in self.sizes:
            self.look(name)

    def create(self, whom: int) -> None:
        missing = [(pod, task) for pod, task in self.wanted() if pod not in self.pods]
        for pod, task in some(missing, whom):
            if task.node in self.sizes:
                self.pods[pod] = task

    def resize(self, whom: int) -> None:
        """Give a pod the resources that are wanted for it.

        It grows at once, and shrinks only if no generation is in flight.
        """
        wanted = {
            pod: task for pod, task in self.wanted() if pod in self.pods and task != self.pods[pod]
        }
        for pod in some(list(wanted), whom):
            flies = self.state.jobs[pod[0]].pending_generation is not None
            if not flies or wanted[pod].resources.cpu >= self.pods[pod].resources.cpu:
                self.pods[pod] = wanted[pod]

    def listed(self, whom: int) -> None:
        for name in some(list(self.sizes), whom):
            self.look(name)

    def delete(self, whom: int) -> None:
        wanted = dict(self.wanted())
        for pod in some([pod for pod in self.pods if pod not in wanted], whom):
            del self.pods[pod]

    def resume(self, whom: int) -> None:
        for job in some(
            [job for job in self.state.jobs.values() if job.pending_generation is not None], whom
        ):
            self.resumed(job)

    def abandon(self, whom: int) -> None:
        for job in some(
            [job for job in self.state.jobs.values() if job.pending_generation is not None], whom
        ):
            self.hear(
                GenerationAbandoned(
                    **name_of(job),
                    uid=job.uid,
                    generation=job.pending_generation or 0,
                    reason="Unschedulable",
                )
            )

    def exit(self, whom: int) -> None:
        for key, name in some(list(self.pods), whom):
            task, job = self.pods.pop((key, name)), self.state.jobs.get(key)
            code, reason = EXITS[whom % len(EXITS)]
            if job is not None:
                self.hear(
                    TaskExited(
                        **name_of(job),
                        uid=job.uid,
                        generation=job.generation,
                        pod=name,
                        pod_uid=name,
                        role=task.role,
                        serial=task.serial,
                        node=task.node,
                        exit_code=code,
                        reason=reason,
                    )
                )

    def progress(self, whom: int) -> None:
        for job in some([job for job in self.state.jobs.values() if job.active_decision], whom):
            self.hear(
                report(job, 50.0 + whom, 1.0, 1_000_000, usage(job, whom / 250, 0.5 + whom / 100))
            )

    def first_reports(self) -> None:
        for job in list(self.state.jobs.values()):
            if job.active_decision and job.progress is None:
                self.hear(report(job, 100.0, 1.0, 1_000_000))

    def nonsense(self, whom: int) -> None:
        for job in some([job for job in self.state.jobs.values() if job.active_decision], whom):
            speed, loss, total = (of[whom % len(of)] for of in (SPEEDS, LOSSES, TOTALS))
            self.hear(
                report(job, speed, loss, total, usage(job, speed, abs(loss)) if whom % 2 else ())
            )

    def extreme(self, whom: int) -> None:
        """Repeat a message with one extreme number in it, if it can be read.

        Messages that the allocator publishes after validating a request are not repeated.
        """
        for message in some(self.old[-8:], whom):
            changed = odd(message, seed(whom, self.sequence))
            if changed is not None and not isinstance(
                message, JobAccepted | JobChanged | AllocationDecided
            ):
                self.hear(changed)

    def stranger(self, whom: int) -> None:
        for name in some(list(self.sizes), whom):
            self.strangers[name] = min(self.sizes[name].cpu, self.strangers.get(name, 0.0) + 1.0)
            self.look(name)

    def leave(self, whom: int) -> None:
        for name in some(
            [n for n, held in self.strangers.items() if held and n in self.sizes], whom
        ):
            self.strangers[name] -= 1.0
            self.look(name)

    def node_gone(self, whom: int) -> None:
        for name in some(list(self.sizes), whom) if whom < RARE else ():
            self.hear(replace(self.picture(name), gone=True))
            del self.sizes[name]
            self.pods = {pod: task for pod, task in self.pods.items() if task.node != name}

    def node_new(self, whom: int) -> None:
        name = f"n{whom % 5}"
        if name not in self.sizes:
            self.sizes[name] = node_size(whom)
            self.look(name)

    def cordon(self, whom: int) -> None:
        for name in some(list(self.sizes), whom):
            self.hear(replace(self.picture(name), schedulable=False))

    def cancel(self, whom: int) -> None:
        for job in some(list(self.state.jobs.values()), whom) if whom < RARE else ():
            self.hear(CancelRequested(**name_of(job)))

    def change(self, whom: int) -> None:
        """Change priority and bounds of a job, or suspend or resume it, as its user."""
        for job in some(list(self.state.jobs.values()), whom):
            self.hear(change_of(job, whom))
            for sequence in unanswered_changes(self.state):
                self.hear(answer_change(self.state, sequence, self.rules))

    def finish(self, whom: int) -> None:
        for job in some(list(self.state.jobs.values()), whom) if whom < RARE else ():
            self.hear(
                JobFinished(**name_of(job), uid=job.uid, outcome="succeeded", finished_s=self.now)
            )

    def jump(self, whom: int) -> None:
        self.now += JUMPS[whom % len(JUMPS)]

    def again(self, whom: int) -> None:
        """Repeat an earlier message, unless it is an acceptance."""
        for message in some(self.old, whom):
            if not isinstance(message, JobAccepted):
                self.hear(message)

    # ------------------------------------------------------------ state of the cluster

    def wanted(self) -> Iterator[tuple[Pod, TaskPlan]]:
        for key, job in self.state.jobs.items():
            for decision in (job.active_decision, job.pending_decision):
                yield from (
                    ((key, job.pod(task)), task) for task in (decision.tasks if decision else ())
                )

    def resumed(self, job: Job) -> None:
        self.hear(
            TrainingResumed(
                **name_of(job),
                uid=job.uid,
                generation=job.pending_generation or 0,
                step=0,
                samples=0,
                previous=None if job.stands_still else job.running,
                pause_s=1.0,
            )
        )

    def look(self, name: str) -> None:
        self.hear(self.picture(name))

    def picture(self, name: str) -> CapacityChanged:
        own = [(pod, task) for pod, task in self.pods.items() if task.node == name]
        has = self.sizes[name]
        free = Resources(
            cpu=max(
                0.0,
                has.cpu
                - self.strangers.get(name, 0.0)
                - sum(task.resources.cpu for _, task in own),
            ),
            memory_gib=max(0.0, has.memory_gib - sum(task.resources.memory_gib for _, task in own)),
            gpu=max(0, has.gpu - sum(task.resources.gpu for _, task in own)),
        )
        return CapacityChanged(
            node=name,
            node_uid=name,
            seen=str(self.sequence),
            allocatable=has,
            free=free,
            own=tuple(
                OwnPod(namespace=space, job=job, pod=pod, resources=task.resources)
                for (key, pod), task in own
                for space, _, job in (key.partition("."),)
            ),
            **self.marks(name),
        )

    def marks(self, name: str) -> dict[str, Any]:
        """Return the labels and taints of a node. The taints change every 16 messages."""
        if not self.pools:
            return {}
        number = int(name[1:])
        return {
            "labels": POOLS[number % len(POOLS)],
            "taints": TAINTS[(number + self.sequence // 16) % len(TAINTS)],
        }


STEPS: tuple[Callable[[World, int], None], ...] = (
    World.later,
    World.settle,
    World.progress,
    World.settle,
    World.accept,
    World.progress,
    World.stranger,
    World.leave,
    World.settle,
    World.create,
    World.resize,
    World.listed,
    World.delete,
    World.resume,
    World.abandon,
    World.exit,
    World.nonsense,
    World.extreme,
    World.extreme,
    World.node_gone,
    World.node_new,
    World.cordon,
    World.cancel,
    World.change,
    World.finish,
    World.jump,
    World.again,
)


T = TypeVar("T")


def seed(whom: int, sequence: int) -> int:
    """Return a number that is different at each place of a story."""
    return zlib.crc32(bytes([whom, sequence % 251, sequence // 251 % 251]))


def some(things: list[T], whom: int) -> list[T]:
    """Return one of the things, or nothing if there are none."""
    return [things[whom % len(things)]] if things else []


def node_size(byte: int) -> Resources:
    return Resources(
        cpu=CORES[byte % 5], memory_gib=16.0 if byte % 7 else 3.0, gpu=DEVICES[byte // 5 % 4]
    )


def request(name: str, byte: int, other: int) -> JobRequested:
    low, high = BATCHES[byte % 3]
    ps, workers = 1 + byte // 3 % 2, 1 + byte // 6 % 3
    task = Resources(cpu=(1.0, 0.5, 0.3)[other % 3], memory_gib=1.0)
    asked = RoleResources(
        chief=Resources(cpu=0.25 * (byte % 2), memory_gib=0.5),
        ps=task,
        worker=replace(task, gpu=1) if byte % 11 == 10 else task,
    )
    return JobRequested(
        job=name,
        namespace=SPACES[other // 4 % 2],
        program=Program(name="train.py", digest=f"sha256-{byte % 2:064x}"),
        epochs=1,
        batch=Span(start=max(low, min(32, high)), min=low, max=high),
        ps=Span(start=ps, min=1 if byte % 5 else ps, max=ps + byte // 18 % 3),
        workers=Span(start=workers, min=1 if byte % 7 else workers, max=workers + byte // 54 * 2),
        resources=None if other % 5 == 4 else asked,
        priority=(0, 0, 3, -2)[other % 4],
        device_batch_max=32 if byte % 13 == 12 else None,
    )


def change_of(job: Job, byte: int) -> Change:
    if byte % 3:
        return (SuspendRequested, ResumeRequested)[byte % 2](**name_of(job))
    least, more = 1 + byte // 3 % 3, byte // 9 % 4
    return ChangeRequested(
        **name_of(job),
        priority=(None, 0, 5, -9)[byte // 3 % 4],
        ps=Bounds(min=1, max=1 + byte // 5 % 3) if byte % 2 else None,
        workers=Bounds(min=least, max=least + more) if byte % 5 else None,
    )


def name_of(job: Job) -> dict[str, str]:
    return {"job": job.request.job, "namespace": job.request.namespace}


def usage(job: Job, share: float, gib: float) -> tuple[TaskUsage, ...]:
    """Return the usage of each task: this share of its cores, and less at higher indices."""
    tasks = job.active_decision.tasks if job.active_decision else ()
    return tuple(
        TaskUsage(task=t.name(), cpu=share * t.resources.cpu / (1 + t.index), memory_gib=gib)
        for t in tasks
    )


def report(
    job: Job, speed: float, loss: float, total: int, used: tuple[TaskUsage, ...] = ()
) -> ProgressReported:
    last = job.progress
    return ProgressReported(
        **name_of(job),
        uid=job.uid,
        generation=job.running or 0,
        step=last.step + 1 if last else 1,
        epoch=0,
        samples=(last.samples if last else 0) + 100,
        total_samples=total,
        samples_per_second=speed,
        loss=loss,
        usage=used,
    )


def actions(world: World) -> list[AllocationDecided]:
    return [action for action in world.decided.actions if isinstance(action, AllocationDecided)]
