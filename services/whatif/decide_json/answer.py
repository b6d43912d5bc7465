"""The answer to one document: the desired state of every job, and the reason.

`DocumentState` keeps the allocator's state from one document to the next. A job or node that has
not changed stays the same object. A job that is missing from a document has ended, and is assumed
to have succeeded. The free part of a node is `free` of the document, or what our running tasks
leave. As in the facts of the monitor, each node lists our pods, so they are not counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from services.allocator.admission.requests import with_defaults
from services.allocator.decide import Decisions, decide
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.state import State, apply, close_job
from services.allocator.steps.resize_conditions import PendingChange
from services.whatif.decide_json.document import (
    Document,
    Free,
    InvalidDocument,
    JobDocument,
    NodeDocument,
    names_against,
    read_document,
    read_request,
    request_against,
)
from services.whatif.decide_json.job_state import with_current_tasks, with_observations
from services.whatif.simulator.fake_cluster import own_pods
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    JobRequested,
    OwnPod,
    Resources,
    Role,
)

STREAM = "documents"


class JobDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a job should have. A job without ps and workers waits, or stops.

    `gain` is the time that the change saves, `cost_s` the time that it takes, both in seconds.
    """

    job: str
    chief: str | None = None
    ps: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    batch: int
    reason: str
    gain: float = 0.0
    cost_s: float = 0.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions for one document.

    `decision_ms` is the time from the decoded document to the decisions. Reading and writing of
    JSON are not counted.
    """

    decisions: tuple[JobDecision, ...]
    decision_ms: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The errors in a line. The whole line was ignored."""

    line: int
    errors: tuple[str, ...]


class DocumentSession:
    """Answers one line after the other.

    Each document describes the whole cluster, so changes are decided without a waiting time.
    `clock` (seconds) is used for measurements only.
    """

    def __init__(self, rules: Rules, clock: Callable[[], float]) -> None:
        self.rules = replace(rules, window_s=0.0, max_delay_s=0.0, repeat_max=0)
        self.mirror = DocumentState(self.rules)
        self.decisions = Decisions()
        self.clock = clock
        self.lines = 0
        self.sequence = 0
        self.now = 0.0

    def answer(self, line: bytes) -> Answer | Refusal:
        """Return the decisions for one line, or the reasons why it cannot be used."""
        self.lines += 1
        try:
            said = read_document(line)
            self._check(said)
        except InvalidDocument as wrong:
            return Refusal(line=self.lines, errors=tuple(wrong.reasons))
        before = self.clock()
        self._decide(said)
        decisions = self._decisions_of_jobs()
        passed_s = self.clock() - before
        return Answer(decisions=decisions, decision_ms=passed_s * 1000.0)

    def _decisions_of_jobs(self) -> tuple[JobDecision, ...]:
        """Return the newest decision about each job of the last document."""
        found = []
        for key, said in self.mirror.said.items():
            job = self.mirror.state.jobs[key]
            why = self.decisions.why.get(key, "")
            found.append(job_decision(said.job, job, why))
        return tuple(found)

    def _check(self, said: Document) -> None:
        """Raise `InvalidDocument` with every reason against the document.

        A request that is the same as in the last document was checked there.
        """
        reasons = list(names_against(said))
        for number, one in enumerate(said.jobs):
            if not self.mirror.has_request(one):
                reasons += request_against(number, one.job, one.request)
        if reasons:
            raise InvalidDocument(reasons)

    def _decide(self, said: Document) -> None:
        """Apply the document to the state, then decide and fold the decisions."""
        last = self.decisions
        # If the clock goes back, discard the pending changes: they are of a later time.
        wishes: dict[str, PendingChange] = {}
        if said.now >= self.now:
            wishes = last.pending_changes
        self.now = said.now
        if said.quotas != self.rules.quotas:
            self.rules = replace(self.rules, quotas=said.quotas)

        self.mirror.take_document(said)
        state = self.mirror.state
        self.decisions = decide(
            state,
            self.now,
            self.rules,
            wishes,
            last.failures,
            last.untried,
        )
        for action in self.decisions.actions:
            if isinstance(action, AllocationDecided):
                self._fold(action)

    def _fold(self, action: AllocationDecided) -> None:
        """Apply a decision to the mirrored state, as the allocator reads its own decisions from the
        log.
        """
        self.sequence += 1
        self.mirror.state = apply(self.mirror.state, action, STREAM, self.sequence, self.now)


def job_decision(name: str, job: Job, why: str) -> JobDecision:
    """Return the newest decision about a job, by the job's name in the document."""
    wanted = job.newest_decision
    if wanted is None:
        return JobDecision(job=name, batch=job.request.batch.start, reason=why)

    chiefs = _nodes_of(wanted, "chief")
    pending = job.pending_decision
    return JobDecision(
        job=name,
        chief=chiefs[0] if chiefs else None,
        ps=_nodes_of(wanted, "ps"),
        workers=_nodes_of(wanted, "worker"),
        batch=wanted.batch,
        reason=why or wanted.reason,
        gain=pending.gain_s if pending else 0.0,
        cost_s=pending.cost_s if pending else 0.0,
    )


def _nodes_of(wanted: AllocationDecided, role: Role) -> tuple[str, ...]:
    """Return the nodes of the tasks of one role, in their order."""
    return tuple(task.node for task in wanted.tasks if task.role == role)


PLENTY = 4096.0  # cores or GiB of a node for which the document has no number
MOST = 1e6  # the largest number of cores, GiB or devices of a node
Request = tuple[JobDocument, JobRequested]
"""One job of a document, and its decoded request."""


class DocumentState:
    """The allocator's state after a series of documents, as the service would have it.

    `said` and `nodes` have the newest description of each job and each node.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = State()
        self.said: dict[str, JobDocument] = {}
        self.nodes: dict[str, NodeDocument] = {}
        self.running: dict[str, AllocationDecided | None] = {}
        self.pods: dict[str, dict[str, list[OwnPod]]] = {}
        """Pods by node, then by job."""
        self.uids = 0
        self.looks = 0

    def take_document(self, document: Document) -> None:
        """Update the state from the newest document."""
        self.looks += 1
        now = document.now
        newest = self._requests_by_key(document)
        self._close_missing(newest, now)
        self._add_new(newest, now)
        jobs = self._jobs_now(newest, now)
        touched = self._move_pods(jobs)
        nodes = self._nodes_now(document, touched)

        self.said = {key: said for key, (said, _) in newest.items()}
        self.nodes = {node.name: node for node in document.nodes}
        cause = f"document {self.looks}"
        self.state = replace(self.state, jobs=jobs, nodes=nodes, cause=cause)

    # ------------------------------------------------------------ jobs

    def _close_missing(self, newest: Mapping[str, Request], now: float) -> None:
        """Close the jobs that are missing from the document.

        As in the live service, the speeds observed for their programs stay known.
        """
        for key, job in self.state.jobs.items():
            if key not in newest:
                self.state = close_job(self.state, _successful_end(job, now))

    def has_request(self, said: JobDocument) -> bool:
        """Return True if the last document had the same request of the job."""
        before = self.said.get(_job_key(said))
        return before is not None and before.request == said.request

    def _requests_by_key(self, document: Document) -> dict[str, Request]:
        """Return each job of a document with its request."""
        newest = {}
        for said in document.jobs:
            asked = self._request(said)
            newest[asked.key()] = (said, asked)
        return newest

    def _request(self, said: JobDocument) -> JobRequested:
        """Return the job's request; that of the last document, if it is the same."""
        if self.has_request(said):
            return self.state.jobs[_job_key(said)].request
        asked = read_request(said.job, said.request)
        return with_defaults(asked, self.rules)

    def _add_new(self, newest: Mapping[str, Request], now: float) -> None:
        """Add the new jobs, numbered in the order of their submission."""
        new = []
        for key, (said, asked) in newest.items():
            if key not in self.state.jobs:
                asked_s = now if said.submitted_s is None else said.submitted_s
                new.append((asked_s, asked))
        new.sort(key=itemgetter(0))

        jobs = dict(self.state.jobs)
        for asked_s, asked in new:
            self.uids += 1
            jobs[asked.key()] = Job(uid=self.uids, request=asked, asked_s=asked_s)
        self.state = replace(self.state, jobs=jobs)

    def _jobs_now(self, newest: Mapping[str, Request], now: float) -> dict[str, Job]:
        """Return every job, updated from the newest document."""
        jobs = {}
        for key, (said, asked) in newest.items():
            before = self.state.jobs[key]
            jobs[key] = self._job(before, asked, said, now)
        return jobs

    def _job(self, before: Job, asked: JobRequested, said: JobDocument, now: float) -> Job:
        """Return the job, updated from its document; the same object if nothing changed."""
        if before.pending_generation is None and self.said.get(before.key) == said:
            return before
        job = before
        if before.request != asked:
            job = replace(before, request=asked)
        progressed = self._has_progressed(before.key, said)
        job = with_current_tasks(job, said.current, progressed, now, self.rules)
        return with_observations(job, said, now)

    def _has_progressed(self, key: str, said: JobDocument) -> bool:
        """Return True if the job has more samples than in the last document."""
        if said.progress is None:
            return False
        before = self.said.get(key)
        return _samples_done(said) > _samples_done(before)

    # ------------------------------------------------------------ nodes

    def _move_pods(self, jobs: Mapping[str, Job]) -> set[str]:
        """Replace the pods of jobs whose running decision changed; return the nodes of both
        decisions.
        """
        touched: set[str] = set()
        for key in self.running.keys() | jobs.keys():
            job = jobs.get(key)
            runs = job.active_decision if job else None
            before = self.running.get(key)
            if runs is not before:
                touched |= self._remove_pods(key, before)
                touched |= self._add_pods(key, runs)
        self.running = {key: job.active_decision for key, job in jobs.items()}
        return touched

    def _remove_pods(self, key: str, runs: AllocationDecided | None) -> set[str]:
        """Remove the pods of a decision; return their nodes."""
        nodes = _node_names(runs)
        for node in nodes:
            self.pods[node].pop(key, None)
        return nodes

    def _add_pods(self, key: str, runs: AllocationDecided | None) -> set[str]:
        """Add the pods of a decision; return their nodes."""
        if runs is None:
            return set()
        pods_by_node = own_pods(runs.namespace, runs.job, runs.tasks)
        for node, pods in pods_by_node.items():
            self.pods.setdefault(node, {})[key] = pods
        return set(pods_by_node)

    def _nodes_now(
        self, document: Document, touched: Collection[str]
    ) -> dict[str, CapacityChanged]:
        """Return every node as the monitor would publish it. `touched`: those on which pods
        changed.
        """
        nodes = {}
        for said in document.nodes:
            is_touched = said.name in touched
            nodes[said.name] = self._node(said, is_touched)
        return nodes

    def _node(self, said: NodeDocument, touched: bool) -> CapacityChanged:
        """Return the node as the monitor would publish it; the same object if nothing changed."""
        if not touched and self.nodes.get(said.name) == said:
            return self.state.nodes[said.name]

        own: list[OwnPod] = []
        for pods in self.pods.get(said.name, {}).values():
            own += pods
        has = _node_resources(said)
        return CapacityChanged(
            node=said.name,
            node_uid=said.name,
            seen=str(self.looks),
            allocatable=has,
            free=_free_resources(said.free or Free(), has, own),
            own=tuple(own),
            labels={**({"kind": said.kind} if said.kind else {}), **said.labels},
            taints=said.taints,
        )


def _successful_end(job: Job, now: float) -> JobFinished:
    """Return the end of a job that has succeeded."""
    return JobFinished(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        outcome="succeeded",
        samples=job.progress.samples if job.progress else 0,
        finished_s=now,
    )


def _samples_done(said: JobDocument | None) -> float:
    """Return the samples of a job in its document; 0 if they are unknown."""
    if said is None or said.progress is None:
        return 0
    return said.progress.samples or 0


def _job_key(said: JobDocument) -> str:
    """Return `<namespace>.<job>`."""
    namespace = said.request.get("namespace", "default")
    return f"{namespace}.{said.job}"


def _node_names(runs: AllocationDecided | None) -> set[str]:
    """Return the names of the nodes of a decision's tasks."""
    if runs is None:
        return set()
    return {task.node for task in runs.tasks}


def _node_resources(said: NodeDocument) -> Resources:
    """Return the resources of a node; unknown cpu and memory are `PLENTY`, unknown devices 0."""
    return Resources(
        cpu=_clamped_or_default(said.cpu, PLENTY),
        memory_gib=_clamped_or_default(said.memory_gib, PLENTY),
        gpu=int(_clamped_or_default(said.gpu, 0)),
    )


def _free_resources(said: Free, has: Resources, own: Sequence[OwnPod]) -> Resources:
    """Return the free resources in the document; those that our pods leave if it has none."""
    ours = [pod.resources for pod in own]
    cpu = has.cpu - sum(amount.cpu for amount in ours)
    memory_gib = has.memory_gib - sum(amount.memory_gib for amount in ours)
    gpu = has.gpu - sum(amount.gpu for amount in ours)
    return Resources(
        cpu=_clamped_or_default(said.cpu, max(0.0, cpu)),
        memory_gib=_clamped_or_default(said.memory_gib, max(0.0, memory_gib)),
        gpu=int(_clamped_or_default(said.gpu, max(0, gpu))),
    )


def _clamped_or_default(value: float | None, default: float) -> float:
    """Return the value, at most `MOST`, so that sums stay finite; the default if it is unknown or
    not a number of at least 0.
    """
    if value is None or not value >= 0:
        return default
    return min(value, MOST)
