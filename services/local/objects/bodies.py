"""The fields that all objects have in common, and ownership; and the API errors: one exception, with
the content of the Status object of a real API server.

A stored body is never changed in place. Every `with_...` function returns a new body, which shares
the unchanged parts with the old one.

Garbage: an object is deleted when all its owners are deleted. A deletion with `orphan` removes the
owner from its dependents first, so they stay.
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


def init_containers_of(pod: Body) -> list[Body]:
    return spec(pod).get("initContainers") or []


def container_statuses(pod: Body) -> list[Body]:
    return status(pod).get("containerStatuses") or []


def conditions_of(body: Body) -> list[Body]:
    return status(body).get("conditions") or []


def has_ended(pod: Body) -> bool:
    return status(pod).get("phase") in OVER


def is_leaving(body: Body) -> bool:
    return bool(meta(body).get("deletionTimestamp"))


def at_path(body: Body, path: str) -> Any:
    """Return the value at a path such as `status.phase`; None if there is none."""
    value: Any = body
    for step in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def without_none(fields: Body) -> Body:
    return {key: value for key, value in fields.items() if value is not None}


def with_meta(body: Body, **changes: Any) -> Body:
    """Return the body with changed metadata. A change to None removes the field."""
    return {**body, "metadata": without_none({**meta(body), **changes})}


def with_spec(body: Body, **changes: Any) -> Body:
    return {**body, "spec": without_none({**spec(body), **changes})}


def with_status(body: Body, **changes: Any) -> Body:
    return {**body, "status": without_none({**status(body), **changes})}


def condition(body: Body, kind: str) -> Body | None:
    for each in conditions_of(body):
        if each.get("type") == kind:
            return each
    return None


def condition_reason(body: Body, kind: str) -> str:
    found = condition(body, kind) or {}
    return str(found.get("reason") or "")


def with_condition(
    body: Body, now: str, kind: str, value: str, reason: str = "", message: str = ""
) -> Body:
    """Return the body with a condition. Its transition time changes only if its status does."""
    old = condition(body, kind)
    since = now
    if old and old.get("status") == value:
        since = old.get("lastTransitionTime", now)
    new = {"type": kind, "status": value}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    new["lastTransitionTime"] = since
    return with_status(body, conditions=[*_conditions_without(body, kind), new])


def without_condition(body: Body, kind: str) -> Body:
    return with_status(body, conditions=_conditions_without(body, kind))


def _conditions_without(body: Body, kind: str) -> list[Body]:
    return [each for each in conditions_of(body) if each.get("type") != kind]


def owners_of(body: Body) -> list[Body]:
    return meta(body).get("ownerReferences") or []


def is_owned_by(body: Body, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in owners_of(body))


def is_garbage(body: Body, is_alive: Callable[[str], bool]) -> bool:
    """Return True if every owner is deleted. An owner of a kind that is not served here counts as
    alive.
    """
    owners = owners_of(body)
    for owner in owners:
        if (str(owner.get("apiVersion")), str(owner.get("kind"))) not in BY_NAME:
            return False
        if is_alive(str(owner.get("uid"))):
            return False
    return bool(owners)


def without_owner(body: Body, uid: str) -> Body:
    left = [owner for owner in owners_of(body) if owner.get("uid") != uid]
    return with_meta(body, ownerReferences=left or None)


# ---------------------------------------------------------------- errors


class ApiError(Exception):
    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def as_status(self) -> dict[str, Any]:
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        details = {"details": self.details} if self.details else {}
        return {
            **body,
            "message": self.message,
            "reason": self.reason,
            **details,
            "code": self.code,
        }


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized_error() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(message: str) -> ApiError:
    return ApiError(403, "Forbidden", message)


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def not_found(plural: str, name: str, group: str = "") -> ApiError:
    whole = f"{plural}.{group}" if group else plural
    return ApiError(
        404, "NotFound", f'{whole} "{name}" not found', name=name, group=group, kind=plural
    )


def not_allowed(method: str) -> ApiError:
    return ApiError(405, "MethodNotAllowed", f"{method} is not supported on this resource")


def already_exists(plural: str, name: str) -> ApiError:
    return ApiError(
        409, "AlreadyExists", f'{plural} "{name}" already exists', name=name, kind=plural
    )


def conflict(plural: str, name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {plural} "{name}": {why}'
    return ApiError(409, "Conflict", message, name=name, kind=plural)


def expired_error(asked: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def unsupported_media(given: str, known: str) -> ApiError:
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {known}"
    )
    return ApiError(415, "UnsupportedMediaType", f"{message} (given: {given or 'none'})")


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> ApiError:
    """Return the error for an invalid object. `causes`: every invalid field, with the fault."""
    messages = []
    details = []
    for field, fault in causes:
        messages.append(f"{field}: {fault}")
        details.append({"reason": "FieldValueInvalid", "field": field, "message": fault})
    text = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    message = f'{kind} "{name}" is invalid: {text}'
    return ApiError(422, "Invalid", message, name=name, kind=kind, causes=details)


def too_new(asked: int, current: int) -> ApiError:
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, retryAfterSeconds=1)
