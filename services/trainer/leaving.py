"""What a pod does that will have to go, or whose generation is about to lose another's task: pure.

    TaskLeaving of a ps or the chief   the chief saves at once and trains on, because a hand-over may come too late
    last_save_s before its deadline    the chief saves once more and applies nothing after that: nothing is done again
    every task was told to end         the same at once: there is nobody who could take over
    a pod that was told to end         works on for its generation, and goes when that needs it no more: when the next
                                       trains, when the last save is there, or leave_s before the
                                       deadline

The loss of a worker costs nothing that a checkpoint could save. A cordoned or tainted node may be
taken back, so it stops nobody: only what is certain does, an end that the pod was told or the time
at which Kubernetes kills it.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from services.trainer.actions import Actions, DrainChild, GoAway, SaveChild
from services.trainer.supervise import Notice, Pod
from shared.messages import DELETED, EVICTED, SIGTERM, ClusterSpecPublished, TaskLeaving

CERTAIN = (SIGTERM, EVICTED, DELETED)
WORKS = ("running", "draining")


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: how long before its deadline a pod goes, and how long before that the last save
    begins.
    """

    leave_s: float
    last_save_s: float


def on_leaving(pod: Pod, fact: TaskLeaving, now: float, times: Times) -> tuple[Pod, Actions]:
    """Remember it; and save, where that was the first that is known of a deadline."""
    known = pod.leaving.get(fact.pod, Notice())
    notice = _joined(known, fact)
    pod = replace(pod, leaving={**pod.leaving, fact.pod: notice})
    pod, actions = due(pod, now, times)
    generation, first = _led(pod), notice.leaves_s and not known.leaves_s
    if generation is None or not first or fact.pod not in _indispensable(pod.specs[generation]):
        return pod, actions
    if now < pod.saved_s + times.last_save_s:
        return pod, actions  # of several that leave together each has its notice
    return replace(pod, saved_s=now), (SaveChild(generation), *actions)


def due(pod: Pod, now: float, times: Times) -> tuple[Pod, Actions]:
    """What is to be done by now."""
    generation = _led(pod)
    actions: Actions = ()
    if generation is not None and now >= _stops_s(pod, generation, times):
        pod = replace(pod, children={**pod.children, generation: "draining"})
        actions = (DrainChild(generation, None),)
    return pod, (*actions, GoAway()) if _goes(pod, now, times) else actions


def next_s(pod: Pod, times: Times) -> float:
    """When time alone changes what is due; infinite: never."""
    generation, mine = _led(pod), pod.leaving.get(pod.name, Notice())
    ends_s = mine.leaves_s - times.leave_s if mine.told and mine.leaves_s else math.inf
    return ends_s if generation is None else min(ends_s, _stops_s(pod, generation, times))


def needed(pod: Pod) -> bool:
    """Whether a generation works with this pod in it."""
    return any(phase in WORKS for phase in pod.children.values())


def _joined(known: Notice, fact: TaskLeaving) -> Notice:
    said = [s for s in (known.leaves_s, fact.leaves_s) if s]
    certain = known.certain or fact.why in CERTAIN
    return Notice(min(said, default=0.0), certain, known.told or fact.why == SIGTERM)


def _led(pod: Pod) -> int | None:
    """The newest generation that trains under this pod, its chief."""
    return max(
        (g for g, phase in pod.children.items() if phase == "running" and pod.leads(g)),
        default=None,
    )


def _indispensable(spec: ClusterSpecPublished) -> list[str]:
    return [task.pod for task in spec.tasks if task.role in ("chief", "ps")]


def _stops_s(pod: Pod, generation: int, times: Times) -> float:
    """When the last save has to begin; infinite: nothing that is certain asks for one."""
    spec = pod.specs[generation]
    if _all_told(pod, spec):
        return -math.inf
    notices = [pod.leaving.get(name, Notice()) for name in _indispensable(spec)]
    ends = [notice.leaves_s for notice in notices if notice.certain and notice.leaves_s]
    return min(ends, default=math.inf) - times.leave_s - times.last_save_s


def _all_told(pod: Pod, spec: ClusterSpecPublished) -> bool:
    return all(pod.leaving.get(task.pod, Notice()).told for task in spec.tasks)


def _goes(pod: Pod, now: float, times: Times) -> bool:
    mine = pod.leaving.get(pod.name, Notice())
    if not mine.told:
        return False
    over = mine.leaves_s and now >= mine.leaves_s - times.leave_s
    return bool(over) or not needed(pod) or _stopped(pod)


def _stopped(pod: Pod) -> bool:
    """The newest generation that this pod works for has saved for nobody in particular: for
    good.
    """
    newest = max(g for g, phase in pod.children.items() if phase in WORKS)
    final = pod.finals.get(newest)
    return final is not None and final.successor is None
