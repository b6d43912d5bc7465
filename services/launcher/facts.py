"""What Kubernetes says, read into small facts: pods, headless services, nodes.

Law: a pod is judged by its deletionTimestamp, how its container ended, and its node's Ready. Never by phase alone: on a
dead node a pod stays `Running` for ever.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from services.launcher import labels
from services.launcher.quantities import resources
from shared.messages import Resources, Role

Body = dict[str, Any]
Kind = Literal["pods", "services", "nodes"]
OVER = ("Succeeded", "Failed")


class PodFact(msgspec.Struct, frozen=True, kw_only=True):
    """One of our pods, as last seen. `gone`: it is not there any more."""

    namespace: str
    job: str
    job_uid: int
    role: Role
    serial: int
    name: str
    uid: str
    generation: int = 0  # the one that made it
    node: str = ""
    phase: str = "Pending"
    leaving: bool = False  # has a deletionTimestamp
    gone: bool = False
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    stuck: str = ""  # why the scheduler found no place
    stuck_s: float = 0.0  # ... and since when
    waiting: str = ""  # why the container does not run: ImagePullBackOff, ...
    resources: Resources = Resources()  # asked for
    actual: Resources | None = None  # given, where the node says
    made_with: Resources = Resources()

    @property
    def over(self) -> bool:
        return self.phase in OVER


class ServiceFact(msgspec.Struct, frozen=True, kw_only=True):
    """A job's headless service: the owner of everything made for the job."""

    namespace: str
    name: str
    uid: str
    job_uid: int
    leaving: bool = False


class NodeFact(msgspec.Struct, frozen=True, kw_only=True):
    """A node's readiness, and since when it is so."""

    name: str
    ready: bool = True
    since_s: float = 0.0


def pod_fact(body: Body) -> PodFact | None:
    """None for a pod whose labels are not as ours."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    tags, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    stuck = _condition(status, "PodScheduled", "False", "Unschedulable")
    exit_code, reason, message = _ending(status, "deletionTimestamp" in meta)
    container, live = _first(spec.get("containers")), _first(status.get("containerStatuses"))
    asked = resources((container.get("resources") or {}).get("requests") or {})
    given = (live.get("resources") or {}).get("requests")
    try:
        return PodFact(
            **_whose(meta, tags),
            role=msgspec.convert(tags[labels.ROLE], Role),
            serial=int(tags[labels.SERIAL]),
            job=tags[labels.JOB],
            generation=int(notes.get(labels.GENERATION, 0)),
            node=spec.get("nodeName") or "",
            phase=status.get("phase", "Pending"),
            leaving="deletionTimestamp" in meta,
            exit_code=exit_code,
            reason=reason,
            message=message,
            stuck=(stuck.get("message") or "Unschedulable") if stuck else "",
            stuck_s=seconds(stuck.get("lastTransitionTime")),
            waiting=((live.get("state") or {}).get("waiting") or {}).get("reason", ""),
            resources=asked,
            actual=resources(given) if given else None,
            made_with=_made_with(notes, asked),
        )
    except (KeyError, ValueError):
        return None


def gone(pod: PodFact) -> PodFact:
    return replace(pod, gone=True)


def service_fact(body: Body) -> ServiceFact | None:
    meta = body["metadata"]
    try:
        return ServiceFact(**_whose(meta, meta.get("labels") or {}), leaving="deletionTimestamp" in meta)
    except (KeyError, ValueError):
        return None


def node_fact(body: Body) -> NodeFact:
    ready = next((c for c in _conditions(body.get("status") or {}) if c["type"] == "Ready"), {})
    return NodeFact(
        name=body["metadata"]["name"],
        ready=ready.get("status", "True") == "True",
        since_s=seconds(ready.get("lastTransitionTime")),
    )


def seconds(stamp: str | None) -> float:
    """A point in time as Kubernetes writes it; 0 for none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _whose(meta: Body, tags: dict[str, str]) -> Body:
    return {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "job_uid": int(tags[labels.UID]),
    }


def _made_with(notes: dict[str, str], asked: Resources) -> Resources:
    return msgspec.json.decode(notes[labels.RESOURCES], type=Resources) if labels.RESOURCES in notes else asked


def _ending(status: Body, leaving: bool) -> tuple[int | None, str, str]:
    """Exit code, reason and message of a pod that is over; what is known so far of one that is not."""
    end = (_first(status.get("containerStatuses")).get("state") or {}).get("terminated") or {}
    moved = _condition(status, "DisruptionTarget", "True")
    reason = status.get("reason") or _reason(end.get("reason", ""), bool(moved), leaving)
    message = status.get("message") or end.get("message") or moved.get("message") or ""
    return end.get("exitCode"), reason or _by_phase(status), message


def _reason(ended: str, moved: bool, leaving: bool) -> str:
    if ended == "OOMKilled":
        return ended
    if moved:
        return "Evicted"
    return "Deleted" if leaving else ended


def _by_phase(status: Body) -> str:
    return {"Succeeded": "Completed", "Failed": "Error"}.get(status.get("phase", ""), "")


def _conditions(status: Body) -> list[Body]:
    return status.get("conditions") or []


def _condition(status: Body, kind: str, value: str, reason: str = "") -> Body:
    fits = (c for c in _conditions(status) if (c["type"], c["status"]) == (kind, value))
    return next((c for c in fits if reason in ("", c.get("reason"))), {})


def _first(items: list[Body] | None) -> Body:
    return items[0] if items else {}
