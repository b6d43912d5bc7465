"""The decisions of the kubelet: the action for a pod, and the status that its containers result in.

            | deleted | is leaving | has ended | its cpu or memory changed | else
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
from services.local.objects.admission import with_container_resources
from services.local.objects.bodies import (
    Body,
    container_statuses,
    containers_of,
    format_time,
    has_ended,
    init_containers_of,
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
    """Return the action for a pod (see the table above). `granted`: the resources in force, by
    container.
    """
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
    """Return the free resources of the node for this pod: allocatable less the requests of every
    other pod that has not ended.
    """
    free = parse_amounts(status(node).get("allocatable"))
    for other in pods:
        if node_of(other) != node_of(pod) or uid_of(other) == uid_of(pod) or has_ended(other):
            continue
        free = subtract_amounts(free, pod_requests(other))
    return free


def exceeded_resources(requests: Amounts, free: Amounts) -> list[str]:
    exceeded = []
    for resource, amount in requests.items():
        if amount and amount > free.get(resource, 0):
            exceeded.append(resource)
    return exceeded


def admission_failure(pod: Body, free: Amounts) -> str:
    """Return the reason to refuse a pod that was bound without the scheduler; empty: admit it."""
    for container in init_containers_of(pod):
        if container.get("restartPolicy") == "Always":
            return NO_SIDECARS
    for resource in exceeded_resources(pod_requests(pod), free):
        return f"OutOf{resource}"
    return ""


def resize_failure(pod: Body, node: Body, free: Amounts) -> str:
    """Return `Infeasible` (never on this node), `Deferred` (not now), or empty: resize. A pod may
    always shrink.
    """
    wanted = wanted_requests(pod)
    if exceeded_resources(wanted, parse_amounts(status(node).get("allocatable"))):
        return "Infeasible"
    current = with_allocated_resources(pod)
    granted = sum_amounts(container_requests(current, each) for each in containers_of(current))
    growing = exceeded_resources(wanted, granted)
    for resource in exceeded_resources(wanted, free):
        if resource in growing:
            return "Deferred"
    return ""


def with_allocated_resources(pod: Body) -> Body:
    """Return the pod with its granted resources in place of the desired ones."""
    granted = {each["name"]: each.get("resources") or {} for each in container_statuses(pod)}
    return with_container_resources(pod, granted)


LOOPBACK = "127.0.0.1"
SIGNAL_BASE = 128
CREATING = "ContainerCreating"
BACK_OFF = "CrashLoopBackOff"


class ContainerExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a container's process."""

    code: int
    started_s: float
    ended_s: float
    reason: str
    message: str = ""
    signal: int | None = None


class ContainerProgress(msgspec.Struct, kw_only=True):
    """The state of a container."""

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
    """Return the end of a process. `returncode`: that of Python, which is minus the signal's number
    if a signal ended the process.
    """
    code = SIGNAL_BASE - returncode if returncode < 0 else returncode
    signal = code - SIGNAL_BASE if SIGNAL_BASE < code <= SIGNAL_BASE + 64 else None
    reason = "Error" if code else "Completed"
    if out_of_memory:
        reason = "OOMKilled"
    return ContainerExit(
        code=code, started_s=started_s, ended_s=ended_s, reason=reason, signal=signal
    )


def new_progress(container: Body) -> ContainerProgress:
    return ContainerProgress(
        name=container["name"],
        image=str(container.get("image")),
        granted=requests_and_limits(container),
    )


def terminated_state(end: ContainerExit) -> Body:
    state = {
        "exitCode": end.code,
        "reason": end.reason,
        "message": end.message or None,
        "signal": end.signal,
        "startedAt": format_time(end.started_s),
        "finishedAt": format_time(end.ended_s),
    }
    return {"terminated": without_none(state)}


def state_of(progress: ContainerProgress) -> Body:
    if progress.end is not None:
        return terminated_state(progress.end)
    if progress.started_s is not None:
        return {"running": {"startedAt": format_time(progress.started_s)}}
    state = {"reason": progress.waiting}
    if progress.message:
        state["message"] = progress.message
    return {"waiting": state}


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


def phase_of(containers: list[ContainerProgress]) -> str:
    began = failed = False
    all_ended = True
    for each in containers:
        began = began or each.started_s is not None or each.end is not None or each.restarts > 0
        if each.end is None:
            all_ended = False
        elif each.end.code:
            failed = True
    if all_ended:
        return "Failed" if failed else "Succeeded"
    return "Running" if began else "Pending"


def with_progress(
    pod: Body, inits: list[ContainerProgress], mains: list[ContainerProgress], now_s: float
) -> Body:
    """Return the pod with the status that its containers result in."""
    now = format_time(now_s)
    uid = str(meta(pod).get("uid"))
    phase = phase_of(mains)
    initialized = True
    init_statuses = []
    for each in inits:
        init_statuses.append(container_status(each, uid))
        if not each.end:
            initialized = False
        elif each.end.code:
            phase = "Failed"
    pod = with_status(
        pod,
        hostIP=LOOPBACK,
        hostIPs=[{"ip": LOOPBACK}],
        podIP=LOOPBACK,
        podIPs=[{"ip": LOOPBACK}],
        startTime=status(pod).get("startTime") or now,
        observedGeneration=meta(pod).get("generation"),
        phase=phase,
        containerStatuses=[container_status(each, uid) for each in mains],
        initContainerStatuses=init_statuses or None,
    )
    ready = all(map(is_running, mains))
    return with_readiness(pod, now, ready, phase, initialized)


def with_readiness(pod: Body, now: str, ready: bool, phase: str, initialized: bool) -> Body:
    reasons = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
    reason = reasons.get(phase, "" if ready else "ContainersNotReady")
    init_reason = "" if initialized else "ContainersNotInitialized"
    pod = with_condition(pod, now, "PodReadyToStartContainers", "True")
    pod = with_condition(pod, now, "Initialized", str(initialized), init_reason)
    pod = with_condition(pod, now, "Ready", str(ready), reason)
    return with_condition(pod, now, "ContainersReady", str(ready), reason)


def rejected_pod(pod: Body, reason: str, message: str, now_s: float) -> Body:
    """Return a pod that the kubelet refuses before it starts a container."""
    pod = with_status(
        pod, phase="Failed", reason=reason, message=message, startTime=format_time(now_s)
    )
    return with_condition(pod, format_time(now_s), "Ready", "False", "PodFailed")


def desired_resources(pod: Body) -> dict[str, Body]:
    return {each["name"]: requests_and_limits(each) for each in containers_of(pod)}


def requests_and_limits(container: Body) -> Body:
    resources = container.get("resources") or {}
    return {which: resources[which] for which in ("requests", "limits") if which in resources}


def cpu_request(pod: Body) -> int:
    return sum(resources_of(each, "requests").get("cpu", 0) for each in containers_of(pod))


def should_restart(pod: Body, end: ContainerExit) -> bool:
    policy = spec(pod).get("restartPolicy")
    return policy == "Always" or (policy == "OnFailure" and end.code != 0)


def restart_backoff_s(earlier: int, first_s: float, longest_s: float) -> float:
    """Return the back-off: first, 2 x first, 4 x first ... at most the longest."""
    return float(min(first_s * 2**earlier, longest_s))
