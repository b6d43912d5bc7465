"""Documents as the allocator's state, from one to the next.

A job or node that stayed the same stays the very same object. A job that is said no more is over,
and succeeded as far as anybody knows. A node's `free` is as said, or else as our running tasks
leave it; their pods are listed, as the monitor does it, so they are not counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.outside.document import Document, Free, JobSaid, NodeSaid
from services.allocator.outside.learning import learned
from services.allocator.outside.request import request
from services.allocator.outside.standing import standing
from services.allocator.requests.admission import completed
from services.allocator.rules import Rules
from services.allocator.state import State, over
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    JobRequested,
    OwnPod,
    Resources,
)

PLENTY = 4096.0  # cores or GiB of a node that does not say
MOST = 1e6  # cores, GiB or devices of any node
Pods = tuple[OwnPod, ...]


class Mirror:
    """The allocator's state, as the service's would be, after document upon document.

    `said` and `nodes` are the newest words about each job and each node.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = State()
        self.said: dict[str, JobSaid] = {}
        self.nodes: dict[str, NodeSaid] = {}
        self.running: dict[str, AllocationDecided | None] = {}
        self.pods: dict[str, dict[str, Pods]] = {}
        """By node, then by job."""
        self.uids = 0
        self.looks = 0

    def look(self, document: Document) -> None:
        """Take a document for the newest picture of the world."""
        self.looks += 1
        now = document.now
        requests: dict[str, JobRequested] = {}
        newest: dict[str, JobSaid] = {}
        for said in document.jobs:
            asked = self._request(said)
            requests[said.job] = asked
            newest[asked.key()] = said

        self._close(newest, now)
        self._number(document, requests)
        jobs = {}
        for key, said in newest.items():
            jobs[key] = self._job(self.state.jobs[key], requests[said.job], said, now)

        touched = self._moved(jobs)
        nodes = {}
        for node in document.nodes:
            nodes[node.name] = self._node(node, node.name in touched)

        self.said = newest
        self.nodes = {node.name: node for node in document.nodes}
        self.state = replace(self.state, jobs=jobs, nodes=nodes, cause=f"document {self.looks}")

    # ------------------------------------------------------------ jobs

    def _close(self, newest: Mapping[str, JobSaid], now: float) -> None:
        """Close the jobs that are said no more.

        The speeds that they have shown stay known of their programs, as in the live service.
        """
        for key, job in self.state.jobs.items():
            if key in newest:
                continue
            ended = JobFinished(
                job=job.request.job,
                namespace=job.request.namespace,
                uid=job.uid,
                outcome="succeeded",
                samples=job.progress.samples if job.progress else 0,
                finished_s=now,
            )
            self.state = over(self.state, ended)

    def has_request(self, said: JobSaid) -> bool:
        """Tell if the last document had the same request of the job."""
        before = self.said.get(_key(said))
        return before is not None and before.request == said.request

    def _request(self, said: JobSaid) -> JobRequested:
        """Return the job's request; that of the last document, if it is the same."""
        if self.has_request(said):
            return self.state.jobs[_key(said)].request
        return completed(request(said.job, said.request), self.rules)

    def _number(self, document: Document, requests: Mapping[str, JobRequested]) -> None:
        """Add the new jobs, numbered in the order of their submission."""
        new: list[tuple[float, JobRequested]] = []
        for said in document.jobs:
            asked = requests[said.job]
            if asked.key() not in self.state.jobs:
                asked_s = document.now if said.submitted_s is None else said.submitted_s
                new.append((asked_s, asked))
        new.sort(key=itemgetter(0))

        jobs = dict(self.state.jobs)
        for asked_s, asked in new:
            self.uids += 1
            jobs[asked.key()] = Job(uid=self.uids, request=asked, asked_s=asked_s)
        self.state = replace(self.state, jobs=jobs)

    def _job(self, before: Job, asked: JobRequested, said: JobSaid, now: float) -> Job:
        """Return the job after the newest word; the very same one, if there is nothing new."""
        if before.coming is None and self.said.get(before.key) == said:
            return before
        job = before
        if before.request != asked:
            job = replace(before, request=asked)
        progressed = self._has_progressed(before.key, said)
        job = standing(job, said.current, progressed, now, self.rules)
        return learned(job, said, now)

    def _has_progressed(self, key: str, said: JobSaid) -> bool:
        if said.progress is None:
            return False
        before = self.said.get(key)
        samples_before = None
        if before and before.progress:
            samples_before = before.progress.samples
        return (said.progress.samples or 0) > (samples_before or 0)

    # ------------------------------------------------------------ nodes

    def _moved(self, jobs: Mapping[str, Job]) -> set[str]:
        """Keep the pods of the running decisions; return the nodes on which they changed."""
        touched: set[str] = set()
        for key in self.running.keys() | jobs.keys():
            runs = jobs[key].runs if key in jobs else None
            before = self.running.get(key)
            if runs is not before:
                touched |= self._off(key, before)
                touched |= self._on(key, runs)
        self.running = {key: job.runs for key, job in jobs.items()}
        return touched

    def _off(self, key: str, runs: AllocationDecided | None) -> set[str]:
        """Take the pods of a decision away; return their nodes."""
        nodes = _nodes(runs)
        for node in nodes:
            self.pods[node].pop(key, None)
        return nodes

    def _on(self, key: str, runs: AllocationDecided | None) -> set[str]:
        """Put the pods of a decision in place; return their nodes."""
        nodes = _nodes(runs)
        for node in nodes:
            self.pods.setdefault(node, {})[key] = _pods(runs, node)
        return nodes

    def _node(self, said: NodeSaid, touched: bool) -> CapacityChanged:
        """Return the node as the monitor would see it; the very same, if nothing changed."""
        if not touched and self.nodes.get(said.name) == said:
            return self.state.nodes[said.name]
        own: list[OwnPod] = []
        for pods in self.pods.get(said.name, {}).values():
            own += pods
        has = Resources(
            cpu=_or(said.cpu, PLENTY),
            memory_gib=_or(said.memory_gib, PLENTY),
            gpu=int(_or(said.gpu, 0)),
        )
        return CapacityChanged(
            node=said.name,
            node_uid=said.name,
            seen=str(self.looks),
            allocatable=has,
            free=_free(said.free or Free(), has, own),
            own=tuple(own),
            labels={"kind": said.kind} if said.kind else {},
        )


def _key(said: JobSaid) -> str:
    """Return `<namespace>.<job>`."""
    return f"{said.request.get('namespace', 'default')}.{said.job}"


def _nodes(runs: AllocationDecided | None) -> set[str]:
    """Return the nodes of a decision's tasks."""
    if runs is None:
        return set()
    return {task.node for task in runs.tasks}


def _pods(runs: AllocationDecided | None, node: str) -> Pods:
    """Return the pods of a decision on one node."""
    if runs is None:
        return ()
    pods = []
    for task in runs.tasks:
        if task.node != node:
            continue
        pod = OwnPod(
            namespace=runs.namespace,
            job=runs.job,
            pod=task.pod(runs.job),
            resources=task.resources,
        )
        pods.append(pod)
    return tuple(pods)


def _free(said: Free, has: Resources, own: Sequence[OwnPod]) -> Resources:
    """Return the free resources as said, or else those that our pods leave."""
    cpu = has.cpu - sum(pod.resources.cpu for pod in own)
    memory_gib = has.memory_gib - sum(pod.resources.memory_gib for pod in own)
    gpu = has.gpu - sum(pod.resources.gpu for pod in own)
    return Resources(
        cpu=_or(said.cpu, max(0.0, cpu)),
        memory_gib=_or(said.memory_gib, max(0.0, memory_gib)),
        gpu=int(_or(said.gpu, max(0, gpu))),
    )


def _or(value: float | None, default: float) -> float:
    """Return the value if it is possible, within bounds, so that sums of it stay numbers."""
    if value is None or not value >= 0:
        return default
    return min(value, MOST)
