"""Documents as the allocator's state, from one to the next; what stayed the same stays the very same object.

A job that is said no more is over, and succeeded as far as anybody knows. A node's `free` is what is said, or what our
running tasks leave of it; that running tasks are counted there already is told by listing their pods, as the monitor
does.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.outside.document import Document, JobSaid, NodeSaid
from services.allocator.outside.learning import learned
from services.allocator.outside.request import request
from services.allocator.outside.standing import standing
from services.allocator.requests.admission import completed
from services.allocator.rules import Rules
from services.allocator.state import State, over
from shared.messages import AllocationDecided, CapacityChanged, JobFinished, JobRequested, OwnPod, Resources

PLENTY = 4096.0  # cores or GiB of a node that does not say
MOST = 1e6  # cores, GiB or devices of any node
Pods = tuple[OwnPod, ...]


class Mirror:
    """`state` is as the service's would be; `said` and `nodes` are the newest words of each job and node."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.state = rules, State()
        self.said: dict[str, JobSaid] = {}
        self.nodes: dict[str, NodeSaid] = {}
        self.running: dict[str, AllocationDecided | None] = {}
        self.pods: dict[str, dict[str, Pods]] = {}
        """By node, then by job."""
        self.uids, self.looks = 0, 0

    def look(self, document: Document) -> None:
        self.looks += 1
        requests = {said.job: self._request(said) for said in document.jobs}
        newest = {requests[said.job].key(): said for said in document.jobs}
        self._close(newest, document.now)
        self._number(document, requests)
        jobs = {key: self._job(self.state.jobs[key], requests[s.job], s, document.now) for key, s in newest.items()}
        touched = self._moved(jobs)
        nodes = {node.name: self._node(node, node.name in touched) for node in document.nodes}
        self.said, self.nodes = newest, {node.name: node for node in document.nodes}
        self.state = replace(self.state, jobs=jobs, nodes=nodes, cause=f"document {self.looks}")

    # ------------------------------------------------------------ jobs

    def _close(self, newest: Mapping[str, JobSaid], now: float) -> None:
        """Those that are said no more: what they have shown is known of their programs, as in the live service."""
        for key, job in self.state.jobs.items():
            if key not in newest:
                ended = JobFinished(
                    job=job.request.job,
                    namespace=job.request.namespace,
                    uid=job.uid,
                    outcome="succeeded",
                    samples=job.progress.samples if job.progress else 0,
                    finished_s=now,
                )
                self.state = over(self.state, ended)

    def _request(self, said: JobSaid) -> JobRequested:
        """The one of before, if the same is said."""
        key = f"{said.request.get('namespace', 'default')}.{said.job}"
        before = self.said.get(key)
        if before is not None and before.request == said.request:
            return self.state.jobs[key].request
        return completed(request(said.job, said.request), self.rules)

    def _number(self, document: Document, requests: Mapping[str, JobRequested]) -> None:
        """New jobs, numbered in the order of their submission."""
        new = [said for said in document.jobs if requests[said.job].key() not in self.state.jobs]
        jobs = dict(self.state.jobs)
        for said in sorted(new, key=lambda s: document.now if s.submitted_s is None else s.submitted_s):
            self.uids += 1
            asked_s = document.now if said.submitted_s is None else said.submitted_s
            asked = requests[said.job]
            jobs[asked.key()] = Job(uid=self.uids, request=asked, asked_s=asked_s)
        self.state = replace(self.state, jobs=jobs)

    def _job(self, before: Job, asked: JobRequested, said: JobSaid, now: float) -> Job:
        if before.coming is None and self.said.get(before.key) == said:
            return before
        job = before if before.request == asked else replace(before, request=asked)
        job = standing(job, said.current, self._progressed(before.key, said), now, self.rules)
        return learned(job, said, now)

    def _progressed(self, key: str, said: JobSaid) -> bool:
        before = self.said.get(key)
        then = before.progress.samples if before and before.progress else None
        return said.progress is not None and (said.progress.samples or 0) > (then or 0)

    # ------------------------------------------------------------ nodes

    def _moved(self, jobs: Mapping[str, Job]) -> set[str]:
        """Keep who stands where; the nodes on which that changed."""
        touched: set[str] = set()
        for key in self.running.keys() | jobs.keys():
            runs = jobs[key].runs if key in jobs else None
            before = self.running.get(key)
            if runs is not before:
                touched |= self._off(key, before) | self._on(key, runs)
        self.running = {key: job.runs for key, job in jobs.items()}
        return touched

    def _off(self, key: str, runs: AllocationDecided | None) -> set[str]:
        nodes = {task.node for task in runs.tasks} if runs else set()
        for node in nodes:
            self.pods[node].pop(key, None)
        return nodes

    def _on(self, key: str, runs: AllocationDecided | None) -> set[str]:
        nodes = {task.node for task in runs.tasks} if runs else set()
        for node in nodes:
            self.pods.setdefault(node, {})[key] = _pods(runs, node)
        return nodes

    def _node(self, said: NodeSaid, touched: bool) -> CapacityChanged:
        if not touched and self.nodes.get(said.name) == said:
            return self.state.nodes[said.name]
        own = tuple(pod for pods in self.pods.get(said.name, {}).values() for pod in pods)
        has = Resources(cpu=_or(said.cpu, PLENTY), memory_gib=_or(said.memory_gib, PLENTY), gpu=int(_or(said.gpu, 0)))
        return CapacityChanged(
            node=said.name,
            node_uid=said.name,
            seen=str(self.looks),
            allocatable=has,
            free=_free(said, has, own),
            own=own,
            labels={"kind": said.kind} if said.kind else {},
        )


def _pods(runs: AllocationDecided | None, node: str) -> Pods:
    return tuple(
        OwnPod(
            namespace=runs.namespace,
            job=runs.job,
            pod=task.pod(runs.job),
            resources=task.resources,
        )
        for task in (runs.tasks if runs else ())
        if runs and task.node == node
    )


def _free(said: NodeSaid, has: Resources, own: Pods) -> Resources:
    """As said; of what is not said, what our pods leave."""
    free = said.free
    return Resources(
        cpu=_or(free.cpu if free else None, max(0.0, has.cpu - sum(pod.resources.cpu for pod in own))),
        memory_gib=_or(
            free.memory_gib if free else None, max(0.0, has.memory_gib - sum(pod.resources.memory_gib for pod in own))
        ),
        gpu=int(_or(free.gpu if free else None, max(0, has.gpu - sum(pod.resources.gpu for pod in own)))),
    )


def _or(value: float | None, otherwise: float) -> float:
    """What is said, if it can be; within bounds, so that sums of it stay numbers."""
    return otherwise if value is None or not value >= 0 else min(value, MOST)
