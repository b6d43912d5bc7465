"""A job's request from outside.

It has the fields of `JobRequested`, and some kindness: a plain number stands for a span of one;
`program`, `epochs`, `batch`, `ps` and `workers` may be absent (then unknown, 1, 1, 0 and 1);
numbers may be whole floats. `ps` may be 0: devices side by side, whose batch is the global one. A
job without a chief in its resources has one that costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.policies.registry import POLICIES
from services.allocator.requests.validate import field_reasons
from shared.messages import JobRequested, Span

Fields = Mapping[str, Any]
SPANS = {"batch": 1, "ps": 0, "workers": 1}
"""The default of each."""
NO_CHIEF = {"cpu": 0.0, "memory_gib": 0.0, "gpu": 0}


def request(job: str, fields: Fields) -> JobRequested:
    """Return the request, of fields against which there are no reasons."""
    said = _completed(job, fields)
    ps = Span(**said["ps"])
    asked = msgspec.convert(_checkable(said), JobRequested)
    return replace(asked, job=job, ps=ps)


def reasons_against(job: str, fields: Fields) -> Iterator[str]:
    """Yield every reason against a request."""
    said = _completed(job, fields)
    yield from field_reasons(JobRequested, _checkable(said), "")
    for name in SPANS:
        yield from _against_span(name, said[name])
    policy = said.get("policy")
    if isinstance(policy, str) and policy not in POLICIES:
        names = ", ".join(sorted(POLICIES))
        yield f"policy: {policy!r} is none; there are {names}"


def _against_span(name: str, span: Any) -> Iterator[str]:
    """Yield the reason against a span, if there is one."""
    least = 0 if name == "ps" else 1
    try:
        start = msgspec.convert(span["start"], int)
        low = msgspec.convert(span["min"], int)
        high = msgspec.convert(span["max"], int)
    except (KeyError, TypeError, msgspec.ValidationError):
        # `field_reasons` has the reason against another span.
        if name == "ps":
            yield "ps: needs start, min and max, whole numbers of at least 0"
        return
    if not least <= low <= start <= high:
        yield f"{name}: {least} <= min {low} <= start {start} <= max {high} does not hold"


def _completed(job: str, fields: Fields) -> dict[str, Any]:
    """Return the fields with spans in place of plain numbers, and with the defaults."""
    said: dict[str, Any] = {}
    for name, value in fields.items():
        if value is not None:
            said[name] = _whole_number(value)

    said.setdefault("program", _unknown_program(job))
    said.setdefault("epochs", 1)
    for name, default in SPANS.items():
        value = said.get(name, default)
        said[name] = _span_of(value)

    sizes = said.setdefault("resources", {})
    if isinstance(sizes, dict):
        said["resources"] = {"chief": NO_CHIEF} | sizes
    return said


def _unknown_program(job: str) -> dict[str, str]:
    """Return a program that no other job has."""
    digest = hashlib.sha256(job.encode()).hexdigest()
    return {"name": "unknown", "digest": f"sha256-{digest}"}


def _span_of(value: Any) -> Any:
    """Return the span of one number; anything else as it is."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"start": value, "min": value, "max": value}
    return value


def _checkable(said: Fields) -> dict[str, Any]:
    """Return the fields with a usual name and one ps.

    The live service would refuse other names, and 0 ps; a simulator may have them.
    """
    return {**said, "job": "any", "ps": {"start": 1, "min": 1, "max": 1}}


def _whole_number(value: Any) -> Any:
    """Return the value with 128 in place of `128.0`, however deep."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole_number(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole_number(inner) for inner in value]
    return value
