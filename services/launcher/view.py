"""Everything the launcher knows: what the bus said of each job, and what Kubernetes shows. A pure
fold of both.

What the bus said is kept over a restart (`Told`); what Kubernetes shows is listed anew; what is
under way (`asked`) is forgotten, because performing it again does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from services.launcher import actions
from services.launcher.facts import JobObjectFact, NodeFact, PodFact, PolicyFact, ServiceFact
from services.launcher.folding import fold, is_early
from services.launcher.jobs import Job
from shared.bounds import add_early_fact, shorten_texts
from shared.messages import (
    AllocationDecided,
    CheckpointFailed,
    CheckpointSaved,
    GenerationAbandoned,
    GenerationPrepared,
    JobFinished,
    JobMessage,
    ProgressReported,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)

FINISHED_KEPT = 10_000  # ends that were told last: a late decision must not bring a job back
FINISHED_OF_NAME = 32  # of them, most under one job name: a job can announce the end of any uid, under its own name
Fact = (
    TrainingResumed
    | CheckpointSaved
    | CheckpointFailed
    | GenerationPrepared
    | TaskReady
    | TaskStarted
    | TaskLeaving
    | TaskExited
    | TaskUpdated
)


class EarlyFact(msgspec.Struct, frozen=True):
    """A fact that was read before the decision that it follows on."""

    fact: Fact
    at_s: float


class BusState(msgspec.Struct, frozen=True, kw_only=True):
    """What the bus said: `jobs` by uid, `finished` by name and uid, in the order in which the ends
    were told.

    Law: a message about a job counts only under the name of the job with that uid. The server
    checks the name, which is part of the subject; the uid in the body is whatever the sender wrote.
    """

    jobs: dict[int, Job] = {}
    finished: dict[str, float] = {}
    early: tuple[EarlyFact, ...] = ()

    def has_finished(self, key: str, uid: int) -> bool:
        """Return whether this job is over. Snapshots of 0.1.0 have ends by uid alone."""
        return _end_key(key, uid) in self.finished or str(uid) in self.finished


def _end_key(key: str, uid: int) -> str:
    return f"{key}.{uid}"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """`pods` by job uid and pod uid, `services` and `policies` by job uid.

    `refused`: why (job uid, generation) cannot be made.
    """

    bus_state: BusState = BusState()
    pods: dict[int, dict[str, PodFact]] = {}
    services: dict[int, ServiceFact] = {}
    policies: dict[int, PolicyFact] = {}
    nodes: dict[str, NodeFact] = {}
    refused: dict[tuple[int, int], str] = {}
    services_with_credentials: frozenset[str] = (
        frozenset()
    )  # services (uids) whose job has its credentials
    pending_actions: frozenset[str] = frozenset()
    awaited_pods: frozenset[tuple[int, str]] = frozenset()
    """Job uid and uid of each pod that has spoken on the bus and has yet to be shown to us."""
    watching_since_s: float = (
        0.0  # since when we watch: no step is late before its time has passed before our eyes
    )

    def pods_of(self, uid: int) -> list[PodFact]:
        return list(self.pods.get(uid, {}).values())

    def existing_pods(self, uid: int) -> dict[str, PodFact]:
        """The pods of a job that exist, by name."""
        return {pod.name: pod for pod in self.pods_of(uid) if not pod.deleted}

    def taken_names(self, job: Job) -> set[str]:
        """Pod names that an earlier job of the same name has not given back yet."""
        others = (pods.values() for uid, pods in self.pods.items() if uid != job.uid)
        return {
            p.name
            for pods in others
            for p in pods
            if (p.namespace, p.job) == (job.namespace, job.job) and not p.deleted
        }

    def is_service_name_taken(self, job: Job) -> bool:
        same = (job.namespace, job.job)
        return any(
            (s.namespace, s.name) == same for uid, s in self.services.items() if uid != job.uid
        )

    def uids(self) -> set[int]:
        return {*self.bus_state.jobs, *self.pods, *self.services}


# ---------------------------------------------------------------- the bus


def fold_message(view: View, message: JobMessage, at_s: float) -> View:
    """Remember a message."""
    uid, new = message.uid, _fold_told(view.bus_state, message, at_s)
    if new is view.bus_state:
        return view
    gone = (uid, message.generation)
    keep = {
        k: v
        for k, v in view.refused.items()
        if not (isinstance(message, GenerationAbandoned) and k == gone)
    }
    return replace(
        view, bus_state=new, refused=keep, awaited_pods=_pods_not_shown_yet(view, new, uid)
    )


def _pods_not_shown_yet(view: View, new: BusState, uid: int) -> frozenset[tuple[int, str]]:
    """Return the pods that Kubernetes has yet to show us, after news of one job: its newly ready
    pods are added.
    """
    before, now = view.bus_state.jobs.get(uid), new.jobs.get(uid)
    old, ready = before.ready if before else {}, now.ready if now else {}
    if old is ready:
        return view.awaited_pods
    spoken = {
        (uid, pod_uid) for pod_uid in ready.keys() - old.keys() - view.pods.get(uid, {}).keys()
    }
    return (
        frozenset(each for each in view.awaited_pods if each[0] != uid or each[1] in ready) | spoken
    )


def _fold_told(said: BusState, message: JobMessage, at_s: float) -> BusState:
    uid, key = message.uid, message.key()
    job = said.jobs.get(uid)
    if said.has_finished(key, uid) or (job is not None and job.key != key):
        return said
    if isinstance(message, JobFinished):
        return _without(said, key, uid, at_s)
    if isinstance(message, Fact) and is_early(job, message):
        waits = EarlyFact(shorten_texts(message), at_s)
        return replace(said, early=add_early_fact(said.early, waits, lambda each: each.fact))
    if job is None and isinstance(message, AllocationDecided):
        job = Job(namespace=message.namespace, job=message.job, uid=uid)
    if job is None:
        return said
    folded = fold(job, message, at_s)
    if isinstance(message, ProgressReported) and folded is job:
        return said
    said = replace(said, jobs={**said.jobs, uid: folded})
    return (
        _with_early(said, key, uid)
        if isinstance(message, AllocationDecided) and said.early
        else said
    )


def _without(said: BusState, key: str, uid: int, at_s: float) -> BusState:
    """Forget a job that is over, except that it is."""
    of_name = [end for end in said.finished if end.startswith(f"{key}.")]
    dropped = set(of_name[: max(0, len(of_name) + 1 - FINISHED_OF_NAME)])
    ends = [(end, told_s) for end, told_s in said.finished.items() if end not in dropped]
    return BusState(
        jobs={other: job for other, job in said.jobs.items() if other != uid},
        finished=dict([*ends, (_end_key(key, uid), at_s)][-FINISHED_KEPT:]),
        early=tuple(each for each in said.early if not _is_about(each, key, uid)),
    )


def _is_about(early: EarlyFact, key: str, uid: int) -> bool:
    return early.fact.uid == uid and early.fact.key() == key


def _with_early(said: BusState, key: str, uid: int) -> BusState:
    """Fold the facts of a job that waited for the decision which is known now."""
    waiting = [each for each in said.early if _is_about(each, key, uid)]
    said = replace(said, early=tuple(each for each in said.early if not _is_about(each, key, uid)))
    for each in waiting:
        said = _fold_told(said, each.fact, each.at_s)
    return said


# ---------------------------------------------------------------- Kubernetes


def with_pod(view: View, pod: PodFact) -> View:
    """Remember a pod as it is now; of one that is gone, only if it lived, how it ended."""
    own = {uid: p for uid, p in view.pods.get(pod.job_uid, {}).items() if uid != pod.uid}
    if not (pod.deleted and pod.phase == "Pending"):
        own[pod.uid] = pod
    done = {actions.create_pod_key(pod.name, pod.job_uid)} | (
        {f"delete pod {pod.uid}"} if pod.deleted else set()
    )
    shown = {
        "pending_actions": view.pending_actions - done,
        "awaited_pods": view.awaited_pods - {(pod.job_uid, pod.uid)},
    }
    return replace(view, pods=_put(view.pods, pod.job_uid, own), **shown)


def with_pod_list(view: View, listed: Iterable[PodFact], namespace: str = "") -> View:
    """All there are (in one namespace, where one is given): the others are gone. So is what was
    made and is not there, be it that it ended before it could be shown: it is made again, which
    does no harm where it is only late.
    """
    found, view = list(listed), _unmade(view, "create pod ")
    there = {pod.uid for pod in found}
    known = (p for own in view.pods.values() for p in own.values() if _inside(p, namespace))
    lost = [p for p in known if p.uid not in there and not p.deleted]
    for pod in [*(replace(p, deleted=True) for p in lost), *found]:
        view = with_pod(view, pod)
    return view


def without_pod(view: View, pod: PodFact) -> View:
    """A pod that is gone, of which nothing more needs to be said."""
    own = {uid: p for uid, p in view.pods.get(pod.job_uid, {}).items() if uid != pod.uid}
    return replace(view, pods=_put(view.pods, pod.job_uid, own))


def with_service(view: View, service: ServiceFact, deleted: bool) -> View:
    known = view.services.get(service.job_uid)
    if deleted:
        if known is None or known.uid != service.uid:
            return view
        left = {uid: s for uid, s in view.services.items() if uid != service.job_uid}
        return replace(
            view,
            services=left,
            pending_actions=view.pending_actions - {f"delete service {service.uid}"},
        )
    asked = frozenset(
        k for k in view.pending_actions if not k.startswith(f"create service {service.job_uid} ")
    )
    return replace(
        view, services={**view.services, service.job_uid: service}, pending_actions=asked
    )


def with_service_list(view: View, listed: Iterable[ServiceFact], namespace: str = "") -> View:
    view = replace(
        view, services={uid: s for uid, s in view.services.items() if not _inside(s, namespace)}
    )
    view = _unmade(view, "create service ")
    for service in listed:
        view = with_service(view, service, deleted=False)
    return view


def with_policy(view: View, policy: PolicyFact, deleted: bool) -> View:
    """One that is gone, or made, is no longer being made."""
    uid = policy.job_uid
    if deleted and view.policies.get(uid, policy).uid != policy.uid:
        return view
    left = {u: p for u, p in view.policies.items() if u != uid}
    asked = frozenset(k for k in view.pending_actions if not k.startswith(f"create policy {uid} "))
    return replace(view, policies=left if deleted else {**left, uid: policy}, pending_actions=asked)


def with_policy_list(view: View, listed: Iterable[PolicyFact], namespace: str = "") -> View:
    view = replace(
        view, policies={uid: p for uid, p in view.policies.items() if not _inside(p, namespace)}
    )
    view = _unmade(view, "create policy ")
    for policy in listed:
        view = with_policy(view, policy, deleted=False)
    return view


def _unmade(view: View, kind: str) -> View:
    return replace(
        view,
        pending_actions=frozenset(key for key in view.pending_actions if not key.startswith(kind)),
    )


def _inside(fact: PodFact | JobObjectFact, namespace: str) -> bool:
    return namespace in ("", fact.namespace)


def with_node(view: View, node: NodeFact, deleted: bool, now: float) -> View:
    fact = (
        NodeFact(name=node.name, ready=False, since_s=now)
        if deleted
        else _with_deadline(view, node, now)
    )
    return replace(view, nodes={**view.nodes, node.name: fact})


def _with_deadline(view: View, node: NodeFact, now: float) -> NodeFact:
    """With the time by which its pods are gone, from when we first saw who takes it away."""
    known = view.nodes.get(node.name)
    if known is not None and known.eviction_taint == node.eviction_taint:
        return replace(node, leaves_s=known.leaves_s)
    return replace(node, leaves_s=now + node.notice_s if node.notice_s else 0.0)


def with_node_list(view: View, listed: Iterable[NodeFact], now: float) -> View:
    """All there are: a node that was there and is not any more counts as not ready from now on."""
    found = {node.name: _with_deadline(view, node, now) for node in listed}
    lost = {
        n: f if not f.ready else NodeFact(name=n, ready=False, since_s=now)
        for n, f in view.nodes.items()
    }
    return replace(view, nodes={**lost, **found})


def with_credentials(view: View, service_uid: str) -> View:
    """A job's credentials are there; those go with their service, so others need not be
    remembered.
    """
    there = {service.uid for service in view.services.values()}
    return replace(
        view, services_with_credentials=(view.services_with_credentials & there) | {service_uid}
    )


# ---------------------------------------------------------------- what is under way


def start_watching(view: View, now: float) -> View:
    """All has been listed: of what was said before, nothing is still to be shown."""
    return replace(view, watching_since_s=now, awaited_pods=frozenset())


def with_pending_action(view: View, key: str) -> View:
    return replace(view, pending_actions=view.pending_actions | {key})


def without_pending_action(view: View, key: str) -> View:
    """It failed, or nothing will show that it is done: it may be ordered again."""
    return replace(view, pending_actions=view.pending_actions - {key})


def with_refusal(view: View, uid: int, generation: int, why: str) -> View:
    return replace(view, refused={**view.refused, (uid, generation): why})


def _put(
    pods: dict[int, dict[str, PodFact]], uid: int, own: dict[str, PodFact]
) -> dict[int, dict[str, PodFact]]:
    return {**{u: p for u, p in pods.items() if u != uid}, **({uid: own} if own else {})}
