"""Every way to say no: one exception, carrying what the Status object of a real API server would
say.
"""

from typing import Any


class Refusal(Exception):
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


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def forbidden(message: str) -> Refusal:
    return Refusal(403, "Forbidden", message)


def no_such_path() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def not_found(plural: str, name: str, group: str = "") -> Refusal:
    whole = f"{plural}.{group}" if group else plural
    return Refusal(
        404, "NotFound", f'{whole} "{name}" not found', name=name, group=group, kind=plural
    )


def not_allowed(method: str) -> Refusal:
    return Refusal(405, "MethodNotAllowed", f"{method} is not supported on this resource")


def already_exists(plural: str, name: str) -> Refusal:
    return Refusal(
        409, "AlreadyExists", f'{plural} "{name}" already exists', name=name, kind=plural
    )


def conflict(plural: str, name: str, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {plural} "{name}": {why}'
    return Refusal(409, "Conflict", message, name=name, kind=plural)


def expired(asked: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {asked} ({oldest})")


def unsupported_media(given: str, known: str) -> Refusal:
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {known}"
    )
    return Refusal(415, "UnsupportedMediaType", f"{message} (given: {given or 'none'})")


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> Refusal:
    """`causes` are pairs of field and what is wrong with it: all of them, not only the first."""
    said = [f"{field}: {why}" for field, why in causes]
    listed = [
        {"reason": "FieldValueInvalid", "field": field, "message": why} for field, why in causes
    ]
    whole = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    return Refusal(
        422, "Invalid", f'{kind} "{name}" is invalid: {whole}', name=name, kind=kind, causes=listed
    )


def too_new(asked: int, current: int) -> Refusal:
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return Refusal(504, "Timeout", message, retryAfterSeconds=1)
