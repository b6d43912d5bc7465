"""A simulated cluster with jobs, whose messages go one by one to the allocator's fold.

A node has 16 cores and 64 GiB; one in four also has 4 devices. Pods of other users occupy up to
half of its cores. Eight jobs share a program. A job starts with 1 or 2 ps and 1 to 4 workers and
may have 8 times as many; one in eight needs a device for each worker. Cores of a task: 0.5, 1 or 2.
The speed of a job follows a given formula (`speed`), with 3 % noise. After a decision, pods are
listed, generations resume and speeds are reported at once.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import msgspec

from services.allocator import snapshot
from services.allocator.decide import Decisions, prepare_tables
from services.allocator.policies.contract import Quota
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.observations import role_count
from services.allocator.state.state import State
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobAccepted,
    JobRequested,
    OwnPod,
    Program,
    ProgressReported,
    Resources,
    RoleResources,
    Span,
    TrainingResumed,
)
from tests.allocator.builders import Story

CORES, GIB, DEVICES = 16.0, 64.0, 4
ALIKE = 8
"""Number of jobs that share one program."""
TEAMS = 4
FOLLOWED = 16
"""Maximum number of rounds of decisions until the reaction to one fact has settled."""
RULES = Rules(policy="weir")


def with_quotas(nodes: int) -> Rules:
    """Return rules with four namespaces, each with a quota of a sixth of all cores.

    This is less than its jobs could use.
    """
    cores = CORES * nodes / 6
    quotas = {
        team(number): Quota(cpu=cores, memory_gib=GIB * nodes, gpu=DEVICES * nodes)
        for number in range(TEAMS)
    }
    return Rules(policy="weir", quotas=quotas)


def team(number: int) -> str:
    return f"team-{number % TEAMS}"


class Machines:
    """The cores of each node that other users' pods occupy, and Weir's pods on it."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self.strangers = {
            f"node-{n:04}": float(chance.randrange(int(CORES) // 2)) for n in range(nodes)
        }
        self.devices = {name: DEVICES if n % 4 == 3 else 0 for n, name in enumerate(self.strangers)}
        self.pods: dict[str, dict[str, OwnPod]] = {name: {} for name in self.strangers}
        self.where: dict[str, dict[str, str]] = {}
        self.looks = 0

    def moved(self, job: Job, decided: AllocationDecided) -> set[str]:
        """Replace the pods of a job by those of a decision; return the nodes that change."""
        name = job.request.job
        wanted, old = {job.pod(task): task for task in decided.tasks}, self.where.get(name, {})
        self.where[name] = {pod: task.node for pod, task in wanted.items()}
        for pod in old.keys() - wanted.keys():
            del self.pods[old[pod]][pod]
        for pod in wanted.keys() - old.keys():
            task = wanted[pod]
            own = OwnPod(
                namespace=job.request.namespace, job=name, pod=pod, resources=task.resources
            )
            self.pods[task.node][pod] = own
        return {(old.get(pod) or wanted[pod].node) for pod in old.keys() ^ wanted.keys()}

    def seen(self, name: str) -> CapacityChanged:
        self.looks += 1
        has = Resources(cpu=CORES, memory_gib=GIB, gpu=self.devices[name])
        own = tuple(self.pods[name].values())
        free = Resources(
            cpu=max(0.0, CORES - self.strangers[name] - sum(pod.resources.cpu for pod in own)),
            memory_gib=max(0.0, GIB - sum(pod.resources.memory_gib for pod in own)),
            gpu=max(0, self.devices[name] - sum(pod.resources.gpu for pod in own)),
        )
        return CapacityChanged(
            node=name, node_uid=name, seen=str(self.looks), allocatable=has, free=free, own=own
        )


class Cluster:
    """`story` has the messages and the state of the allocator. `alike` jobs share a program."""

    def __init__(
        self, nodes: int, jobs: int, seed: int, alike: int = ALIKE, rules: Rules = RULES
    ) -> None:
        self.chance, self.alike = random.Random(f"{nodes} x {jobs}, {seed}"), alike
        self.machines, self.story = Machines(nodes, self.chance), Story(rules)
        self.story.hear(*map(self.machines.seen, self.machines.strangers), after_s=0.0)
        self.requests = [
            request(number, self.chance, alike, bool(rules.quotas)) for number in range(jobs)
        ]

    def accept(self, first: int, last: int) -> None:
        for uid, asked in list(enumerate(self.requests, 1))[first:last]:
            accepted = JobAccepted(
                job=asked.job,
                namespace=asked.namespace,
                uid=uid,
                request=asked,
                accepted_s=self.story.now,
            )
            self.story.hear(accepted, after_s=0.0)

    def settle(self) -> None:
        """Decide, and carry out all actions."""
        self.story.decide(after_s=60.0)
        self.come_true(self.story.decisions)

    def come_true(self, decisions: Decisions) -> None:
        touched: set[str] = set()
        for action in decisions.actions:
            job = self.story.state.jobs.get(action.key())
            if job is not None and isinstance(action, AllocationDecided):
                touched |= self.machines.moved(job, action)
                self.story.hear(resumed(job), after_s=0.0)
        self.story.hear(*map(self.machines.seen, sorted(touched)), after_s=0.0)

    def report(self) -> None:
        """Report the speed of every running job."""
        reports = (progress(job, self.chance, self.alike) for job in self.story.state.jobs.values())
        self.story.hear(*(said for said in reports if said), after_s=0.0)

    def follow(self) -> None:
        """Carry out the decisions and decide again, until nothing is left to do."""
        for _ in range(FOLLOWED):
            if not self.story.decisions.actions:
                return
            self.come_true(self.story.decisions)
            self.story.decide()
        raise AssertionError(f"still not settled after {FOLLOWED} rounds")

    def report_one(self) -> ProgressReported:
        """Return a report of the speed of one running job."""
        running = [job for job in self.story.state.jobs.values() if job.active_decision is not None]
        said = progress(self.chance.choice(running), self.chance, self.alike)
        assert said
        return said

    def stir(self) -> CapacityChanged:
        """Return the new capacity of one node, on which another user's pod starts or ends."""
        name = self.chance.choice(sorted(self.machines.strangers))
        held = self.machines.strangers[name]
        self.machines.strangers[name] = held - 1.0 if held >= 1.0 else held + 1.0
        return self.machines.seen(name)


def request(number: int, chance: random.Random, alike_jobs: int, teams: bool) -> JobRequested:
    alike = random.Random(number // alike_jobs)
    cores, devices = alike.choice((0.5, 1.0, 2.0)), int(alike.random() < 1 / 8)
    ps, workers = chance.randint(1, 2), chance.randint(1, 4)
    return JobRequested(
        job=f"job-{number}",
        namespace=team(number) if teams else "default",
        program=Program(name="train.py", digest=f"sha256-{number // alike_jobs:064x}"),
        epochs=1,
        batch=Span(start=64, min=64, max=64),
        ps=Span(start=ps, min=1, max=8 * ps),
        workers=Span(start=workers, min=1, max=8 * workers),
        resources=RoleResources(
            chief=Resources(cpu=0.25, memory_gib=1.0),
            ps=Resources(cpu=cores, memory_gib=2.0),
            worker=Resources(cpu=cores, memory_gib=2.0, gpu=devices),
        ),
        policy="weir",
    )


def resumed(job: Job) -> TrainingResumed:
    return TrainingResumed(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=job.generation,
        step=0,
        samples=0,
        previous=job.generation - 1,
        pause_s=1.0 + job.uid % 5,
    )


def progress(job: Job, chance: random.Random, alike: int) -> ProgressReported | None:
    runs = job.active_decision
    if runs is None:
        return None
    last = job.progress
    return ProgressReported(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=runs.generation,
        step=last.step + 1 if last else 1,
        epoch=0,
        samples=(last.samples if last else 0) + 10_000,
        total_samples=1_000_000 * (1 + job.uid % 7),
        samples_per_second=speed(job, role_count(runs, "ps"), role_count(runs, "worker"), alike)
        * chance.gauss(1.0, 0.03),
        loss=2.0 / (1.0 + (last.step if last else 0)),
    )


def speed(job: Job, ps: int, workers: int, alike: int) -> float:
    """Return examples/s. A worker's step takes the time of its batch and its share of the ps.

    The time of a batch depends on the program.
    """
    own = 1.0 + (job.uid - 1) // alike % 5
    return 64.0 * workers / (0.1 * own + 0.02 * workers / ps + 0.002 * workers)


def variations(cluster: Cluster, count: int) -> Iterator[State]:
    """Yield copies of the state with other last reports, stored and read as after a restart."""
    before, heard = cluster.story.state, len(cluster.story.log)
    for _ in range(count):
        cluster.report()
        stored = snapshot.encode_snapshot(prepare_tables(cluster.story.state, cluster.story.rules))
        yield msgspec.json.decode(zlib.decompress(stored), type=State)
        cluster.story.state = before
        del cluster.story.log[heard:]
