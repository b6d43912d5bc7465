"""A job's request as it is said from outside.

It has the fields of `JobRequested`, and some kindness: a plain number stands for a span of one; `program`, `epochs`,
`batch`, `ps` and `workers` may be absent (then unknown, 1, 1, 0 and 1); numbers may be whole floats. `ps` may be 0:
devices side by side, whose batch is the global one. A job without a chief in its resources has one that costs nothing.
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
"""What an absent one is taken for."""
NO_CHIEF = {"cpu": 0.0, "memory_gib": 0.0, "gpu": 0}


def request(job: str, fields: Fields) -> JobRequested:
    """Of fields against which there are no reasons."""
    said = _completed(job, fields)
    ps = Span(**said["ps"])
    asked = msgspec.convert(_checkable(said), JobRequested)
    return replace(asked, job=job, ps=ps)


def reasons_against(job: str, fields: Fields) -> Iterator[str]:
    said = _completed(job, fields)
    yield from field_reasons(JobRequested, _checkable(said), "")
    for name in SPANS:
        yield from _against_span(name, said[name])
    policy = said.get("policy")
    if isinstance(policy, str) and policy not in POLICIES:
        yield f"policy: {policy!r} is none; there are {', '.join(sorted(POLICIES))}"


def _against_span(name: str, span: Any) -> Iterator[str]:
    least = 0 if name == "ps" else 1
    try:
        start, low, high = (msgspec.convert(span[end], int) for end in ("start", "min", "max"))
    except (KeyError, TypeError, msgspec.ValidationError):
        if name == "ps":
            yield "ps: needs start, min and max, whole numbers of at least 0"
        return
    if not least <= low <= start <= high:
        yield f"{name}: {least} <= min {low} <= start {start} <= max {high} does not hold"


def _completed(job: str, fields: Fields) -> dict[str, Any]:
    """Spans of plain numbers, and what was left open."""
    said: dict[str, Any] = {name: _whole(value) for name, value in fields.items() if value is not None}
    unknown = hashlib.sha256(job.encode()).hexdigest()
    said.setdefault("program", {"name": "unknown", "digest": f"sha256-{unknown}"})
    said.setdefault("epochs", 1)
    for name, otherwise in SPANS.items():
        value = said.get(name, otherwise)
        plain = isinstance(value, int) and not isinstance(value, bool)
        said[name] = {"start": value, "min": value, "max": value} if plain else value
    sizes = said.setdefault("resources", {})
    if isinstance(sizes, dict):
        said["resources"] = {"chief": NO_CHIEF} | sizes
    return said


def _checkable(said: Fields) -> dict[str, Any]:
    """Without what the live service would refuse and a simulator may have: any name, no ps."""
    return {**said, "job": "any", "ps": {"start": 1, "min": 1, "max": 1}}


def _whole(value: Any) -> Any:
    """`128.0` is 128, however deep."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
