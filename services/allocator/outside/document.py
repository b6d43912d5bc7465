"""What is said from outside: one JSON document, a line.

    {"now": s, "nodes": [Node, ...], "jobs": [JobSaid, ...], "quotas": {namespace: {"cpu", "memory_gib", "gpu"}, ...}}

Whatever may be unknown may be absent or null. Numbers that JSON does not know (NaN, Infinity) are read as Python writes
them, and are taken for unknown. Every reason against a document is told at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from services.allocator.outside.request import reasons_against
from services.allocator.policies.contract import Quotas
from services.allocator.requests.validate import field_reasons


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document."""


class Free(Said, frozen=True, kw_only=True):
    cpu: float | None = None
    memory_gib: float | None = None
    gpu: float | None = None


class NodeSaid(Said, frozen=True, kw_only=True):
    """One node: what it has, and what of it nobody holds (absent: what our tasks leave). Absent: more than enough cpu
    and memory, no device.
    """

    name: str
    cpu: float | None = None
    memory_gib: float | None = None
    gpu: float | None = None
    kind: str | None = None
    free: Free | None = None


class Current(Said, frozen=True, kw_only=True):
    """Where a job's tasks are, a node for each. No ps and no workers: nothing of it runs."""

    generation: int | None = None
    chief: str | None = None
    ps: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    batch: float | None = None
    since_s: float | None = None


class Speed(Said, frozen=True, kw_only=True):
    """How fast a job was. `nodes`: on how many, or which. `sync_s`: of a step, spent on waiting for others."""

    ps: float = 0
    workers: float
    batch: float | None = None
    nodes: int | tuple[str, ...] | None = None
    samples_per_second: float | None = None
    step_s: float | None = None
    sync_s: float | None = None


class Profile(Said, frozen=True, kw_only=True):
    parameters: float | None = None
    bytes: float | None = None
    variables: float | None = None
    flops_per_sample: float | None = None


class Progress(Said, frozen=True, kw_only=True):
    samples: float | None = None
    total_samples: float | None = None
    loss: tuple[tuple[float, float | None], ...] = ()
    gradient_noise: float | None = None
    profile: Profile | None = None


class JobSaid(Said, frozen=True, kw_only=True):
    """One job. `current` null: nothing of it runs; absent: no news of it."""

    job: str
    request: dict[str, Any]
    submitted_s: float | None = None
    current: Current | UnsetType | None = UNSET
    observed: tuple[Speed, ...] | None = ()
    progress: Progress | None = None
    pause_s: float | None = None


class Document(Said, frozen=True, kw_only=True):
    now: float
    nodes: tuple[NodeSaid, ...] = ()
    jobs: tuple[JobSaid, ...] = ()
    quotas: Quotas = {}
    """A namespace without one, and a resource that its quota does not name, has no limit."""


class Wrong(ValueError):
    """A document that cannot be used, and every reason why not."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


FORM = "a document is a JSON object with `now`, `nodes` and `jobs`"
_decoder = msgspec.json.Decoder(Document)


def document(line: bytes) -> Document:
    """Raises `Wrong`. Requests are left as they are; `request.py` reads them."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _leniently(line)


def _leniently(line: bytes) -> Document:
    """The slow way: with Python's numbers, without fields that nobody knows; or all reasons why not."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Wrong([f"not JSON: {error}; {FORM}"]) from error
    if not isinstance(raw, dict):
        raise Wrong([FORM])
    told = field_reasons(Document, raw, "")
    unknown = [why for why in told if why.endswith(NO_SUCH_FIELD)]
    if len(told) > len(unknown):
        raise Wrong([*(why for why in told if why not in unknown), *_requests_against(raw.get("jobs"))])
    for why in unknown:
        _drop(raw, why.removesuffix(NO_SUCH_FIELD))
    try:
        return msgspec.convert(raw, Document)
    except msgspec.ValidationError as error:
        raise Wrong([str(error)]) from error


def _requests_against(jobs: Any) -> Iterator[str]:
    for number, job in enumerate(jobs if isinstance(jobs, list) else []):
        if isinstance(job, dict) and isinstance(job.get("request"), dict):
            yield from request_against(number, str(job.get("job")), job["request"])


def request_against(number: int, job: str, fields: dict[str, Any]) -> Iterator[str]:
    yield from (f"jobs[{number}].request.{why}" for why in reasons_against(job, fields))


NO_SUCH_FIELD = ": no such field"


def _drop(raw: Any, path: str) -> None:
    """Take a field out; its path is as in a reason, e.g. `jobs[2].progress.speed`."""
    *before, last = path.replace("[", ".").replace("]", "").split(".")
    for step in before:
        raw = raw[int(step)] if isinstance(raw, list) else raw[step]
    raw.pop(last, None)


def names_against(said: Document) -> Iterator[str]:
    yield from _twice("nodes", Counter(node.name for node in said.nodes))
    yield from _twice("jobs", Counter(job.job for job in said.jobs))


def _twice(field: str, times: Counter[str]) -> Iterator[str]:
    yield from (f"{field}: {name!r} is there {number} times" for name, number in times.items() if number > 1)
