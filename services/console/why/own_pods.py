"""Why a node is as it is, as far as that is our own doing: which pods of ours came or went.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.cli.entry import Entry
from services.console.why.before import Before, wants
from services.console.why.known import uid_of
from shared.messages import AllocationDecided, CapacityChanged, JobFinished

Pod = tuple[str, str, str]
"""Namespace, job, name."""


def comings_and_goings(m: CapacityChanged, before: Before) -> Iterable[Entry | None]:
    """What made, or ended, each of them; of strangers' pods nothing is said."""
    seen = before.known.newest(CapacityChanged, m.key(), before.entry.order)
    if seen is None or not isinstance(seen.said, CapacityChanged):
        return []
    was, now = _pods(seen.said), _pods(m)
    return [_maker(pod, before) for pod in now - was] + [_ender(pod, before) for pod in was - now]


def _pods(m: CapacityChanged) -> set[Pod]:
    return {(pod.namespace, pod.job, pod.pod) for pod in m.own}


def _maker(pod: Pod, before: Before) -> Entry | None:
    """The decision that first wants it."""
    task = task_of(pod)
    told = before.known.of(AllocationDecided, _uid(pod, before))
    return next((e for e in told if e.order < before.entry.order and wants(e.said, *task)), None)


def _ender(pod: Pod, before: Before) -> Entry | None:
    """The decision that first did without it; else the end of its job."""
    task = task_of(pod)
    uid = _uid(pod, before)
    made = _maker(pod, before)
    dropped = None
    if made is not None:
        dropped = before.known.first(
            AllocationDecided, uid, made.order, lambda said: not wants(said, *task)
        )
    if dropped is not None and dropped.order < before.entry.order:
        return dropped
    return before.known.newest(JobFinished, uid, before.entry.order)


def _uid(pod: Pod, before: Before) -> int:
    """Of the job that last bore this name."""
    namespace, job, _ = pod
    last = before.known.newest(AllocationDecided, f"{namespace}.{job}", before.entry.order)
    return uid_of(last) if last else 0


def task_of(pod: Pod) -> tuple[str, int]:
    """Role and serial of a pod that is called `<job>-<role>-<serial>`."""
    _, job, name = pod
    role, _, serial = name.removeprefix(f"{job}-").rpartition("-")
    return role, int(serial) if serial.isdecimal() else -1
