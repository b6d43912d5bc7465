"""Capacity that is about to be free: pods that no decision has any more, until no node lists them.

Law: a release begins when a job ends, when it is suspended, when a generation without some of its
tasks resumes, and when a generation is abandoned. It is capacity with a time: policies divide it as
if it was free, placement uses only free capacity. A change that needs it waits for a short time
that is known beforehand.

Theory: pods of one job end one after the other, within about a second. A decision in the middle of
that uses a part of their capacity and costs a pause; the next one, for the rest, costs another
pause and has to wait for the cooldown. So a job waits as long as such a release usually takes, less
than a pause, and changes once.

    counted until      begin + min(release_max_s, USUAL * the longest of the last KEPT releases)
                       none yet: release_s in place of that product
    a job waits until  that moment of the releases it needs, and never for more than release_max_s
                       on end

A release that took longer than release_max_s (the node was lost, say) tells nothing about the usual
ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from services.allocator.placement.amounts import add
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Node
from services.allocator.settings import Rules
from services.allocator.state.job import Job, without_key
from services.allocator.steps.resize_conditions import PendingChange
from shared.messages import CapacityChanged, Resources, TaskPlan

KEPT = 20
"""Releases with a duration that is remembered."""
USUAL = 2.0
"""A change waits for a release up to this factor times the longest of them."""
SHORTEST_S = 1.0


class Release(Struct, frozen=True, gc=False):
    """The ending pods of one job. `begun_s`: by the server's clock; `pods`: by name, the node that
    lists them.
    """

    namespace: str
    begun_s: float
    pods: dict[str, str]


class Releases(Struct, frozen=True, gc=False):
    """The open releases by job, and the duration (s) of the last ones."""

    open: dict[str, Release] = {}
    took_s: tuple[float, ...] = ()


def begin_release(
    releases: Releases,
    job: Job,
    staying: Collection[TaskPlan],
    nodes: dict[str, CapacityChanged],
    now: float,
) -> Releases:
    """Add the pods that a job had and does not keep, as far as a node still lists them."""
    ending = _going_pods(job, staying, nodes)
    if not ending:
        return releases
    before = releases.open.get(job.key)
    pods = before.pods | ending if before else ending
    release = Release(job.request.namespace, now, pods)
    return replace(releases, open=releases.open | {job.key: release})


def _going_pods(
    job: Job, staying: Collection[TaskPlan], nodes: dict[str, CapacityChanged]
) -> dict[str, str]:
    """Return the pods that a job had and does not keep, each with the node that still lists it."""
    staying_pods = {job.pod(task) for task in staying}
    ending: dict[str, str] = {}
    for decision in job.decided.values():
        for task in decision.tasks:
            pod = job.pod(task)
            if pod in staying_pods:
                continue
            if _is_listed(nodes.get(task.node), job.request.namespace, pod):
                ending[pod] = task.node
    return ending


def end_releases(releases: Releases, node: CapacityChanged, now: float) -> Releases:
    """Remove the pods that their node no longer lists. If none is left of a release, remember its
    duration.
    """
    for key, release in releases.open.items():
        left = _pods_left(release, node)
        if len(left) < len(release.pods):
            releases = _with_pods_left(releases, key, release, left, now)
    return releases


def _pods_left(release: Release, seen: CapacityChanged) -> dict[str, str]:
    """Return the pods of a release without those that this node lists no more."""
    left = {}
    for pod, node in release.pods.items():
        is_elsewhere = node != seen.node
        if is_elsewhere or (not seen.gone and _is_listed(seen, release.namespace, pod)):
            left[pod] = node
    return left


def _with_pods_left(
    releases: Releases, key: str, release: Release, left: dict[str, str], now: float
) -> Releases:
    """Return the releases with only these pods left of one; without it, if none is."""
    if left:
        shorter = replace(release, pods=left)
        return replace(releases, open=releases.open | {key: shorter})
    others = without_key(releases.open, key)
    took_s = (*releases.took_s, max(now - release.begun_s, 0.0))
    return Releases(others, took_s[-KEPT:])


def _is_listed(node: CapacityChanged | None, namespace: str, pod: str) -> bool:
    """Return True if the node lists this pod; False if the node is not known."""
    if node is None:
        return False
    return any(listed.pod == pod and listed.namespace == namespace for listed in node.own)


class ReleasingCapacity(Struct, frozen=True):
    """Capacity that is being released, by node and by namespace. An empty `free`: nothing.

    `until_s`: the time (s) at which the first part of it is no longer waited for.
    """

    free: dict[str, Resources] = {}
    quota: dict[str, Resources] = {}
    until_s: float | None = None

    def added_to_nodes(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes as they will be."""
        if not self.free:
            return list(nodes)
        later = []
        for node in nodes:
            more = self.free.get(node.name)
            later.append(node if more is None else replace(node, free=add(node.free, more)))
        return later


NOTHING_RELEASING = ReleasingCapacity()


def releasing_capacity(
    releases: Releases, nodes: dict[str, CapacityChanged], now: float, rules: Rules
) -> ReleasingCapacity:
    """Return the capacity that is released soon enough to wait for it."""
    if not releases.open:
        return NOTHING_RELEASING

    duration_s = usual_release_s(releases.took_s, rules)
    free: dict[str, Resources] = {}
    quota: dict[str, Resources] = {}
    until_s = []
    for release in releases.open.values():
        due_s = release.begun_s + duration_s
        if now >= due_s:
            continue
        until_s.append(due_s)
        for resources, node in _listed_pods(release, nodes):
            _add_to(free, node, resources)
            _add_to(quota, release.namespace, resources)

    if not free:
        return NOTHING_RELEASING
    return ReleasingCapacity(free, quota, min(until_s))


def _add_to(amounts: dict[str, Resources], name: str, more: Resources) -> None:
    """Add an amount to that of a node or namespace, in place."""
    amounts[name] = add(amounts.get(name, Resources()), more)


@contextmanager
def expected_room(room: Room, releasing: ReleasingCapacity) -> Iterator[None]:
    """Add the releasing capacity to the room for a while. All that is taken meanwhile must be given
    back before the end.
    """
    if not releasing.free:
        yield
        return
    with room.with_more(releasing.free, releasing.quota):
        yield


def bounded_wait(
    pending_change: PendingChange | None, releasing: ReleasingCapacity, now: float, rules: Rules
) -> tuple[PendingChange | None, ReleasingCapacity]:
    """Return the pending change of a job, and the capacity that it may wait for: none if it has
    waited long enough.
    """
    if pending_change is None or pending_change.awaits_s is None:
        return pending_change, releasing
    if not releasing.free:
        return replace(pending_change, awaits_s=None), releasing
    if now < pending_change.awaits_s + rules.release_max_s:
        return pending_change, releasing
    return pending_change, NOTHING_RELEASING


def usual_release_s(took_s: Sequence[float], rules: Rules) -> float:
    """Return how long (s) a change waits for a release; 0: `release_s` turns that off."""
    usual = [seconds for seconds in took_s if seconds <= rules.release_max_s]
    if not rules.release_s or not usual:
        return min(rules.release_s, rules.release_max_s)
    duration_s = max(USUAL * max(usual), SHORTEST_S)
    return min(duration_s, rules.release_max_s)


def _listed_pods(
    release: Release, nodes: dict[str, CapacityChanged]
) -> Iterable[tuple[Resources, str]]:
    """Yield the capacity and the node of each pod that its node still lists."""
    for pod, name in release.pods.items():
        node = nodes.get(name)
        if node is None:
            continue
        for pod_listed in node.own:
            if pod_listed.pod == pod and pod_listed.namespace == release.namespace:
                yield pod_listed.resources, name
