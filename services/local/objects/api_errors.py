"""API errors: one exception, with the content of the Status object of a real API server."""

from typing import Any


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
    """`causes`: every invalid field, with the fault."""
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
