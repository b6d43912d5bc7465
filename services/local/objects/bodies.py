"""The fields that all objects have in common, and ownership.

A stored body is never changed in place. Every `with_...` function returns a new body, which shares
the unchanged parts with the old one.

Garbage: an object is deleted when all its owners are deleted. After a deletion with `orphan`, the
owner is removed from the dependents, and they stay.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from services.local.objects.kinds import BY_NAME

Body = dict[str, Any]

OVER = ("Succeeded", "Failed")


def meta(body: Body) -> Body:
    return body.get("metadata") or {}


def spec(body: Body) -> Body:
    return body.get("spec") or {}


def status(body: Body) -> Body:
    return body.get("status") or {}


def labels(body: Body) -> dict[str, str]:
    return meta(body).get("labels") or {}


def name_of(body: Body) -> str:
    return str(meta(body).get("name") or "")


def namespace_of(body: Body) -> str:
    return str(meta(body).get("namespace") or "")


def uid_of(body: Body) -> str:
    return str(meta(body).get("uid") or "")


def node_of(pod: Body) -> str:
    return str(spec(pod).get("nodeName") or "")


def containers_of(pod: Body) -> list[Body]:
    return spec(pod).get("containers") or []


def has_ended(pod: Body) -> bool:
    return status(pod).get("phase") in OVER


def is_leaving(body: Body) -> bool:
    return bool(meta(body).get("deletionTimestamp"))


def at_path(body: Body, path: str) -> Any:
    value: Any = body
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def without_none(fields: Body) -> Body:
    return {key: value for key, value in fields.items() if value is not None}


def with_meta(body: Body, **changes: Any) -> Body:
    """A change to None takes the field away."""
    return {**body, "metadata": without_none({**meta(body), **changes})}


def with_spec(body: Body, **changes: Any) -> Body:
    return {**body, "spec": without_none({**spec(body), **changes})}


def with_status(body: Body, **changes: Any) -> Body:
    return {**body, "status": without_none({**status(body), **changes})}


def condition(body: Body, kind: str) -> Body | None:
    return next((c for c in status(body).get("conditions") or [] if c.get("type") == kind), None)


def with_condition(
    body: Body, now: str, kind: str, value: str, reason: str = "", message: str = ""
) -> Body:
    """The condition as given; its transition time moves only when its status does."""
    old = condition(body, kind)
    since = old.get("lastTransitionTime", now) if old and old.get("status") == value else now
    new = without_none(
        {"type": kind, "status": value, "reason": reason or None, "message": message or None}
    )
    others = [c for c in status(body).get("conditions") or [] if c.get("type") != kind]
    return with_status(body, conditions=[*others, {**new, "lastTransitionTime": since}])


def without_condition(body: Body, kind: str) -> Body:
    return with_status(
        body, conditions=[c for c in status(body).get("conditions") or [] if c.get("type") != kind]
    )


def owners_of(body: Body) -> list[Body]:
    return meta(body).get("ownerReferences") or []


def is_owned_by(body: Body, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in owners_of(body))


def is_garbage(body: Body, is_alive: Callable[[str], bool]) -> bool:
    """Every owner is gone. An owner of a kind that is not served here is given the benefit of the
    doubt.
    """
    owners = owners_of(body)
    known = all(
        (str(owner.get("apiVersion")), str(owner.get("kind"))) in BY_NAME for owner in owners
    )
    return bool(owners) and known and not any(is_alive(str(owner.get("uid"))) for owner in owners)


def without_owner(body: Body, uid: str) -> Body:
    return with_meta(
        body, ownerReferences=[o for o in owners_of(body) if o.get("uid") != uid] or None
    )
