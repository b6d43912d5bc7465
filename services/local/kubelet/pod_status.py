"""The decisions of the kubelet: the action for a pod, and the status that its containers result in.

            | deleted | is leaving | has ended | its cpu or memory changed | otherwise
a worker    | kill    | stop       | nothing   | resize                    | nothing
no worker   | nothing | remove     | nothing   | start                     | start

nothing started               Pending    ContainerCreating, or the reason that it cannot be created
one runs                      Running    Ready
all ended, each with 0        Succeeded  Completed
all ended, one with another   Failed     Error, or OOMKilled
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from services.local.kubelet.cgroup_manager import Limits
from services.local.objects.bodies import (
    Body,
    containers_of,
    format_time,
    has_ended,
    is_leaving,
    meta,
    node_of,
    spec,
    status,
    uid_of,
    with_condition,
    with_status,
    without_none,
)
from services.local.objects.resources import (
    Amounts,
    container_requests,
    parse_amounts,
    pod_limit,
    pod_requests,
    resources_of,
    subtract_amounts,
    sum_amounts,
    wanted_requests,
)

NO_SIDECARS = "SidecarsNotServed"


class PodAction(Enum):
    NOTHING = "nothing"
    START = "start"
    STOP = "stop"
    KILL = "kill"
    RESIZE = "resize"
    TAKE_AWAY = "take away"


def pod_action(pod: Body, gone: bool, alive: bool, granted: dict[str, Body]) -> PodAction:
    """`granted`: the resources in force, by container."""
    if gone:
        return PodAction.KILL if alive else PodAction.NOTHING
    if is_leaving(pod):
        return PodAction.STOP if alive else PodAction.TAKE_AWAY
    if has_ended(pod):
        return PodAction.NOTHING
    if not alive:
        return PodAction.START
    return PodAction.RESIZE if granted != desired_resources(pod) else PodAction.NOTHING


def pod_limits(pod: Body) -> Limits:
    return Limits(
        cpu=pod_limit(pod, "cpu"), memory=pod_limit(pod, "memory"), cpu_request=cpu_request(pod)
    )


def free_for(pod: Body, node: Body, pods: Iterable[Body]) -> Amounts:
    """What the node has for this pod: allocatable less the requests of every other pod that has not
    ended.
    """
    others = [
        p
        for p in pods
        if node_of(p) == node_of(pod) and uid_of(p) != uid_of(pod) and not has_ended(p)
    ]
    return subtract_amounts(
        parse_amounts(status(node).get("allocatable")), sum_amounts(pod_requests(p) for p in others)
    )


def exceeded_resources(asked: Amounts, free: Amounts) -> list[str]:
    return [
        resource for resource, amount in asked.items() if amount and amount > free.get(resource, 0)
    ]


def admission_failure(pod: Body, free: Amounts) -> str:
    """The reason a kubelet refuses a pod that was bound past the scheduler; empty: let it in."""
    if any(c.get("restartPolicy") == "Always" for c in spec(pod).get("initContainers") or []):
        return NO_SIDECARS
    return next(
        (f"OutOf{resource}" for resource in exceeded_resources(pod_requests(pod), free)), ""
    )


def resize_failure(pod: Body, node: Body, free: Amounts) -> str:
    """`Infeasible`: never on this node. `Deferred`: not now. Empty: go ahead. What shrinks always
    may.
    """
    wanted = wanted_requests(pod)
    grows = exceeded_resources(
        wanted,
        sum_amounts(
            container_requests(with_allocated_resources(pod), c)
            for c in containers_of(with_allocated_resources(pod))
        ),
    )
    if exceeded_resources(wanted, parse_amounts(status(node).get("allocatable"))):
        return "Infeasible"
    return "Deferred" if [r for r in exceeded_resources(wanted, free) if r in grows] else ""


def with_allocated_resources(pod: Body) -> Body:
    """The pod with what it was granted instead of what it wants."""
    statuses = {
        s["name"]: s.get("resources") or {} for s in status(pod).get("containerStatuses") or []
    }
    kept = [
        {**c, "resources": statuses.get(c["name"], c.get("resources"))} for c in containers_of(pod)
    ]
    return {**pod, "spec": {**pod["spec"], "containers": kept}}


LOOPBACK = "127.0.0.1"
SIGNAL_BASE = 128
CREATING = "ContainerCreating"
BACK_OFF = "CrashLoopBackOff"


class ContainerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a container ended."""

    code: int
    started_s: float
    ended_s: float
    reason: str
    message: str = ""
    signal: int | None = None


class ContainerProgress(msgspec.Struct, kw_only=True):
    """How far a container has come."""

    name: str
    image: str
    started_s: float | None = None
    end: ContainerExit | None = None
    last_end: ContainerExit | None = None  # of the run before this one
    restarts: int = 0
    waiting: str = CREATING
    message: str = ""
    granted: Body = msgspec.field(default_factory=dict)  # its resources, as they are in force


def container_exit(
    returncode: int, started_s: float, ended_s: float, out_of_memory: bool
) -> ContainerExit:
    """`returncode` as Python has it: minus the signal's number for a process that was killed."""
    code = SIGNAL_BASE - returncode if returncode < 0 else returncode
    killed = code - SIGNAL_BASE if SIGNAL_BASE < code <= SIGNAL_BASE + 64 else None
    reason = "OOMKilled" if out_of_memory else "Error" if code else "Completed"
    return ContainerExit(
        code=code, started_s=started_s, ended_s=ended_s, reason=reason, signal=killed
    )


def new_progress(container: Body) -> ContainerProgress:
    granted = {
        w: q for w, q in (container.get("resources") or {}).items() if w in ("requests", "limits")
    }
    return ContainerProgress(
        name=container["name"], image=str(container.get("image")), granted=granted
    )


def terminated_state(end: ContainerExit) -> Body:
    times = {"startedAt": format_time(end.started_s), "finishedAt": format_time(end.ended_s)}
    return {
        "terminated": without_none(
            {
                "exitCode": end.code,
                "reason": end.reason,
                "message": end.message or None,
                "signal": end.signal,
                **times,
            }
        )
    }


def state_of(progress: ContainerProgress) -> Body:
    if progress.end is not None:
        return terminated_state(progress.end)
    if progress.started_s is not None:
        return {"running": {"startedAt": format_time(progress.started_s)}}
    return {
        "waiting": without_none({"reason": progress.waiting, "message": progress.message or None})
    }


def is_running(progress: ContainerProgress) -> bool:
    return progress.started_s is not None and progress.end is None


def container_status(progress: ContainerProgress, uid: str) -> Body:
    running = is_running(progress)
    requests = progress.granted.get("requests")
    return without_none(
        {
            "name": progress.name,
            "image": progress.image,
            "imageID": "",
            "containerID": f"process://{uid}/{progress.name}",
            "ready": running,
            "started": running,
            "restartCount": progress.restarts,
            "state": state_of(progress),
            "lastState": terminated_state(progress.last_end) if progress.last_end else {},
            "resources": progress.granted or None,
            "allocatedResources": requests or None,
        }
    )


def phase_of(progress: list[ContainerProgress]) -> str:
    if all(p.end is not None for p in progress):
        return "Succeeded" if all(p.end and p.end.code == 0 for p in progress) else "Failed"
    began = any(p.started_s is not None or p.end is not None or p.restarts for p in progress)
    return "Running" if began else "Pending"


def with_progress(
    pod: Body, inits: list[ContainerProgress], mains: list[ContainerProgress], now_s: float
) -> Body:
    """The pod with the status that follows from what its containers did."""
    now = format_time(now_s)
    phase = phase_of(mains)
    uid = str(meta(pod).get("uid"))
    failed_init = next((p for p in inits if p.end is not None and p.end.code), None)
    phase = "Failed" if failed_init is not None else phase
    known = {
        "hostIP": LOOPBACK,
        "hostIPs": [{"ip": LOOPBACK}],
        "podIP": LOOPBACK,
        "podIPs": [{"ip": LOOPBACK}],
        "startTime": status(pod).get("startTime") or now,
        "observedGeneration": meta(pod).get("generation"),
    }
    pod = with_status(
        pod,
        **known,
        phase=phase,
        containerStatuses=[container_status(p, uid) for p in mains],
        initContainerStatuses=[container_status(p, uid) for p in inits] or None,
    )
    return with_readiness(
        pod, now, all(is_running(p) for p in mains), phase, all(p.end for p in inits)
    )


def with_readiness(pod: Body, now: str, ready: bool, phase: str, initialized: bool) -> Body:
    why = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(
        phase, "" if ready else "ContainersNotReady"
    )
    pod = with_condition(pod, now, "PodReadyToStartContainers", "True")
    pod = with_condition(
        pod, now, "Initialized", str(initialized), "" if initialized else "ContainersNotInitialized"
    )
    pod = with_condition(pod, now, "Ready", str(ready), why)
    return with_condition(pod, now, "ContainersReady", str(ready), why)


def rejected_pod(pod: Body, reason: str, message: str, now_s: float) -> Body:
    """A pod that the kubelet refuses before anything ran."""
    pod = with_status(
        pod, phase="Failed", reason=reason, message=message, startTime=format_time(now_s)
    )
    return with_condition(pod, format_time(now_s), "Ready", "False", "PodFailed")


def desired_resources(pod: Body) -> dict[str, Body]:
    return {
        c["name"]: {
            w: q for w, q in (c.get("resources") or {}).items() if w in ("requests", "limits")
        }
        for c in containers_of(pod)
    }


def cpu_request(pod: Body) -> int:
    return sum(resources_of(c, "requests").get("cpu", 0) for c in containers_of(pod))


def should_restart(pod: Body, end: ContainerExit) -> bool:
    policy = spec(pod).get("restartPolicy")
    return policy == "Always" or (policy == "OnFailure" and end.code != 0)


def restart_backoff_s(earlier: int, first_s: float, longest_s: float) -> float:
    """first, 2 x first, 4 x first ... at most the longest."""
    return float(min(first_s * 2**earlier, longest_s))
