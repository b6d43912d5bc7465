"""Everything that the launcher knows: the messages of the bus about each job, and the objects of
Kubernetes. A pure fold of both.

After a restart, the state from the bus is restored (`BusState`) and the objects are listed anew.
Pending actions are forgotten, because performing an action again does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from services.launcher import actions
from services.launcher.facts import JobObjectFact, NodeFact, PodFact, PolicyFact, ServiceFact
from services.launcher.jobs import Job, fold, is_early
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

MAX_FINISHED = 10_000
"""Ends of jobs that are remembered, so that a late decision does not bring a job back."""
MAX_FINISHED_OF_NAME = 32
"""The same for one job name: a job can publish the end of any uid, under its own name."""
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
K = TypeVar("K")
V = TypeVar("V")


class EarlyFact(msgspec.Struct, frozen=True):
    """A fact that was read before its decision."""

    fact: Fact
    at_s: float


class BusState(msgspec.Struct, frozen=True, kw_only=True):
    """The state from the messages of the bus. `jobs`: by uid. `finished`: when each job finished,
    by name and uid, in the order of the ends. `early`: facts that wait for their decision.

    Law: a message about a job counts only under the name of the job with that uid. The server
    checks the name, which is part of the subject; the uid in the body is whatever the sender wrote.
    """

    jobs: dict[int, Job] = {}
    finished: dict[str, float] = {}
    early: tuple[EarlyFact, ...] = ()

    def has_finished(self, key: str, uid: int) -> bool:
        """Return True if this job is over. Snapshots of 0.1.0 have ends by uid alone."""
        return _end_key(key, uid) in self.finished or str(uid) in self.finished


def _end_key(key: str, uid: int) -> str:
    return f"{key}.{uid}"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: by job uid and pod uid. `services`, `policies`: by job uid. `nodes`: by name.

    `refused`: by job uid and generation, why its objects cannot be created.
    `services_with_credentials`: uids of the services with a secret for their job.
    `pending_actions`: keys of the actions that are not known to be done yet.
    `awaited_pods`: job uid and pod uid of pods that are ready on the bus and not listed yet.
    `watching_since_s`: when all objects were first listed; time limits begin then at the earliest.
    """

    bus_state: BusState = BusState()
    pods: dict[int, dict[str, PodFact]] = {}
    services: dict[int, ServiceFact] = {}
    policies: dict[int, PolicyFact] = {}
    nodes: dict[str, NodeFact] = {}
    refused: dict[tuple[int, int], str] = {}
    services_with_credentials: frozenset[str] = frozenset()
    pending_actions: frozenset[str] = frozenset()
    awaited_pods: frozenset[tuple[int, str]] = frozenset()
    watching_since_s: float = 0.0

    def pods_of(self, uid: int) -> list[PodFact]:
        """Return the pods of a job, also deleted ones that are not reported yet."""
        return list(self.pods.get(uid, {}).values())

    def existing_pods(self, uid: int) -> dict[str, PodFact]:
        """Return the pods of a job that exist, by name."""
        return {pod.name: pod for pod in self.pods_of(uid) if not pod.deleted}

    def taken_names(self, job: Job) -> set[str]:
        """Return the pod names that an earlier job of the same name still has."""
        names = set()
        for uid in self.pods.keys() - {job.uid}:
            for pod in self.pods_of(uid):
                if (pod.namespace, pod.job) == (job.namespace, job.job) and not pod.deleted:
                    names.add(pod.name)
        return names

    def is_service_name_taken(self, job: Job) -> bool:
        """Return True if a job of the same name still has its service."""
        for uid, service in self.services.items():
            if uid != job.uid and (service.namespace, service.name) == (job.namespace, job.job):
                return True
        return False

    def uids(self) -> set[int]:
        return {*self.bus_state.jobs, *self.pods, *self.services}


# ---------------------------------------------------------------- the bus


def fold_message(view: View, message: JobMessage, at_s: float) -> View:
    """Fold a message of the bus. `at_s`: when the server stored it."""
    uid = message.uid
    state = _fold_bus_state(view.bus_state, message, at_s)
    if state is view.bus_state:
        return view
    refused = view.refused
    if isinstance(message, GenerationAbandoned):
        refused = _without(refused, (uid, message.generation))
    awaited = _fold_awaited_pods(view, state, uid)
    return replace(view, bus_state=state, refused=refused, awaited_pods=awaited)


def _fold_awaited_pods(view: View, state: BusState, uid: int) -> frozenset[tuple[int, str]]:
    """Return the awaited pods, with the newly ready pods of one job that are not listed yet."""
    before, now = view.bus_state.jobs.get(uid), state.jobs.get(uid)
    ready_before = before.ready if before else {}
    ready = now.ready if now else {}
    if ready_before is ready:
        return view.awaited_pods
    new = ready.keys() - ready_before.keys() - view.pods.get(uid, {}).keys()
    awaited = {(uid, pod_uid) for pod_uid in new}
    for job_uid, pod_uid in view.awaited_pods:
        if job_uid != uid or pod_uid in ready:
            awaited.add((job_uid, pod_uid))
    return frozenset(awaited)


def _fold_bus_state(state: BusState, message: JobMessage, at_s: float) -> BusState:
    uid, key = message.uid, message.key()
    job = state.jobs.get(uid)
    if state.has_finished(key, uid) or (job is not None and job.key != key):
        return state
    if isinstance(message, JobFinished):
        return _finish_job(state, key, uid, at_s)
    if isinstance(message, Fact) and is_early(job, message):
        early = EarlyFact(shorten_texts(message), at_s)
        return replace(state, early=add_early_fact(state.early, early, lambda each: each.fact))
    if job is None and isinstance(message, AllocationDecided):
        job = Job(namespace=message.namespace, job=message.job, uid=uid)
    if job is None:
        return state
    folded = fold(job, message, at_s)
    if isinstance(message, ProgressReported) and folded is job:
        return state
    state = replace(state, jobs={**state.jobs, uid: folded})
    if isinstance(message, AllocationDecided) and state.early:
        return _fold_early_facts(state, key, uid)
    return state


def _finish_job(state: BusState, key: str, uid: int, at_s: float) -> BusState:
    """Drop a job that is over, and remember its end."""
    ends_of_name = [end for end in state.finished if end.startswith(f"{key}.")]
    excess = max(0, len(ends_of_name) + 1 - MAX_FINISHED_OF_NAME)
    finished = dict(state.finished)
    for end in ends_of_name[:excess]:
        del finished[end]
    finished[_end_key(key, uid)] = at_s
    return BusState(
        jobs=_without(state.jobs, uid),
        finished=dict(list(finished.items())[-MAX_FINISHED:]),
        early=tuple(each for each in state.early if not _is_about(each, key, uid)),
    )


def _is_about(early: EarlyFact, key: str, uid: int) -> bool:
    return early.fact.uid == uid and early.fact.key() == key


def _fold_early_facts(state: BusState, key: str, uid: int) -> BusState:
    """Fold the facts of a job that waited for the decision that has been read now."""
    waiting = [each for each in state.early if _is_about(each, key, uid)]
    others = tuple(each for each in state.early if not _is_about(each, key, uid))
    state = replace(state, early=others)
    for each in waiting:
        state = _fold_bus_state(state, each.fact, each.at_s)
    return state


# ---------------------------------------------------------------- pods


def with_pod(view: View, pod: PodFact) -> View:
    """Return the view with a pod as it is now. A deleted pod stays, to be reported, unless it never
    ran.
    """
    pods = _without(view.pods.get(pod.job_uid, {}), pod.uid)
    if not (pod.deleted and pod.phase == "Pending"):
        pods[pod.uid] = pod
    done = {actions.create_pod_key(pod.name, pod.job_uid)}
    if pod.deleted:
        done.add(actions.delete_pod_key(pod.uid))
    return replace(
        view,
        pods=_put_pods(view.pods, pod.job_uid, pods),
        pending_actions=view.pending_actions - done,
        awaited_pods=view.awaited_pods - {(pod.job_uid, pod.uid)},
    )


def with_pod_list(view: View, listed: Iterable[PodFact], namespace: str = "") -> View:
    """Return the view with the complete list of pods (`namespace`: of this one, unless empty).

    Known pods that are not listed count as deleted. A creation is no longer pending, even if its
    pod is not listed, because the pod may have ended already. If it is only late, ordering it
    again does no harm.
    """
    found = list(listed)
    listed_uids = {pod.uid for pod in found}
    view = _without_pending(view, "create pod ")
    lost = []
    for pod in [pod for pods in view.pods.values() for pod in pods.values()]:
        if _is_in(pod, namespace) and pod.uid not in listed_uids and not pod.deleted:
            lost.append(pod.as_deleted())
    for pod in [*lost, *found]:
        view = with_pod(view, pod)
    return view


def without_pod(view: View, pod: PodFact) -> View:
    """Return the view without a deleted pod that needs no report any more."""
    pods = _without(view.pods.get(pod.job_uid, {}), pod.uid)
    return replace(view, pods=_put_pods(view.pods, pod.job_uid, pods))


def _put_pods(
    by_job: dict[int, dict[str, PodFact]], uid: int, pods: dict[str, PodFact]
) -> dict[int, dict[str, PodFact]]:
    others = _without(by_job, uid)
    return {**others, uid: pods} if pods else others


# ---------------------------------------------------------------- services, policies


def with_service(view: View, service: ServiceFact, deleted: bool) -> View:
    uid = service.job_uid
    if not deleted:
        view = _without_pending(view, f"create service {uid} ")
        return replace(view, services={**view.services, uid: service})
    known = view.services.get(uid)
    if known is None or known.uid != service.uid:
        return view
    view = without_pending_action(view, actions.delete_service_key(service.uid))
    return replace(view, services=_without(view.services, uid))


def with_service_list(view: View, listed: Iterable[ServiceFact], namespace: str = "") -> View:
    """Return the view with the complete list of services (`namespace`: of this one, unless
    empty).
    """
    others = {uid: fact for uid, fact in view.services.items() if not _is_in(fact, namespace)}
    view = _without_pending(replace(view, services=others), "create service ")
    for service in listed:
        view = with_service(view, service, deleted=False)
    return view


def with_policy(view: View, policy: PolicyFact, deleted: bool) -> View:
    uid = policy.job_uid
    if deleted and view.policies.get(uid, policy).uid != policy.uid:
        return view
    policies = _without(view.policies, uid)
    if not deleted:
        policies[uid] = policy
    return _without_pending(replace(view, policies=policies), f"create policy {uid} ")


def with_policy_list(view: View, listed: Iterable[PolicyFact], namespace: str = "") -> View:
    """Return the view with the complete list of network policies (`namespace`: of this one, unless
    empty).
    """
    others = {uid: fact for uid, fact in view.policies.items() if not _is_in(fact, namespace)}
    view = _without_pending(replace(view, policies=others), "create policy ")
    for policy in listed:
        view = with_policy(view, policy, deleted=False)
    return view


def with_credentials(view: View, service_uid: str) -> View:
    """Return the view with the credentials of one more service, without those of deleted ones."""
    existing = {service.uid for service in view.services.values()}
    known = (view.services_with_credentials & existing) | {service_uid}
    return replace(view, services_with_credentials=known)


# ---------------------------------------------------------------- nodes


def with_node(view: View, node: NodeFact, deleted: bool, now: float) -> View:
    """Return the view with a node as it is now; a deleted node counts as not ready."""
    fact = _deleted_node(node, now) if deleted else _with_deadline(view, node, now)
    return replace(view, nodes={**view.nodes, node.name: fact})


def with_node_list(view: View, listed: Iterable[NodeFact], now: float) -> View:
    """Return the view with the complete list of nodes; a known node that is not listed counts as
    not ready from now on.
    """
    nodes = {}
    for name, node in view.nodes.items():
        nodes[name] = _deleted_node(node, now) if node.ready else node
    for node in listed:
        nodes[node.name] = _with_deadline(view, node, now)
    return replace(view, nodes=nodes)


def _deleted_node(node: NodeFact, now: float) -> NodeFact:
    return NodeFact(name=node.name, ready=False, since_s=now)


def _with_deadline(view: View, node: NodeFact, now: float) -> NodeFact:
    """Return the node with the time at which its pods are killed: the notice of its taint, from
    when the taint was first seen.
    """
    known = view.nodes.get(node.name)
    if known is not None and known.eviction_taint == node.eviction_taint:
        return replace(node, leaves_s=known.leaves_s)
    return replace(node, leaves_s=now + node.notice_s if node.notice_s else 0.0)


# ---------------------------------------------------------------- actions


def start_watching(view: View, now: float) -> View:
    """Return the view after all objects were listed. Pods not listed are no longer awaited."""
    return replace(view, watching_since_s=now, awaited_pods=frozenset())


def with_pending_action(view: View, key: str) -> View:
    return replace(view, pending_actions=view.pending_actions | {key})


def without_pending_action(view: View, key: str) -> View:
    return replace(view, pending_actions=view.pending_actions - {key})


def _without_pending(view: View, prefix: str) -> View:
    """Return the view without the pending actions with this prefix."""
    pending = [key for key in view.pending_actions if not key.startswith(prefix)]
    return replace(view, pending_actions=frozenset(pending))


def with_refusal(view: View, uid: int, generation: int, reason: str) -> View:
    return replace(view, refused={**view.refused, (uid, generation): reason})


# ---------------------------------------------------------------- helpers


def _is_in(fact: PodFact | JobObjectFact, namespace: str) -> bool:
    """Return True if an object is in a namespace (empty: all)."""
    return namespace in ("", fact.namespace)


def _without(mapping: Mapping[K, V], removed: K) -> dict[K, V]:
    return {key: value for key, value in mapping.items() if key != removed}
