"""The words from outside: one JSON document a line.

    {"now": s, "nodes": [Node, ...], "jobs": [JobSaid, ...], "quotas": {namespace: Quota, ...}}
    Quota: {"cpu", "memory_gib", "gpu"}

A value that may be unknown may be absent or null. Numbers that JSON does not know (NaN, Infinity)
are read as Python writes them, and are taken for unknown. Every reason against a document is told
at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from services.allocator.policies.contract import Quotas
from services.allocator.requests.validate import field_reasons
from services.whatif.decide_json.request import reasons_against


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document."""


class Free(Said, frozen=True, kw_only=True):
    cpu: float | None = None
    memory_gib: float | None = None
    gpu: float | None = None


class NodeSaid(Said, frozen=True, kw_only=True):
    """One node: its resources, and the free part of them (absent: the part that our tasks leave).

    An absent resource is more than enough cpu or memory, and no device.
    """

    name: str
    cpu: float | None = None
    memory_gib: float | None = None
    gpu: float | None = None
    kind: str | None = None
    free: Free | None = None


class Current(Said, frozen=True, kw_only=True):
    """The nodes of a job's tasks, one for each. Without ps and workers nothing of it runs."""

    generation: int | None = None
    chief: str | None = None
    ps: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    batch: float | None = None
    since_s: float | None = None


class Speed(Said, frozen=True, kw_only=True):
    """The speed of a job at one size.

    `nodes` is the number of its nodes, or their names. `sync_s` is the part of a step in which a
    worker waited for others, in seconds.
    """

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
    """Every reason against a document that cannot be used."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


FORM = "a document is a JSON object with `now`, `nodes` and `jobs`"
NO_SUCH_FIELD = ": no such field"
_decoder = msgspec.json.Decoder(Document)


def document(line: bytes) -> Document:
    """Return the document of a line, or raise `Wrong`. `request.py` reads the requests in it."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _document_of_python(line)


def _document_of_python(line: bytes) -> Document:
    """Read a line the slow way: with Python's numbers, without unknown fields.

    Raise `Wrong` with every reason if that fails, too.
    """
    raw = _json_object(line)
    reasons = []
    unknown_fields = []
    for why in field_reasons(Document, raw, ""):
        if why.endswith(NO_SUCH_FIELD):
            path = why.removesuffix(NO_SUCH_FIELD)
            unknown_fields.append(path)
        else:
            reasons.append(why)
    if reasons:
        reasons += _requests_against(raw.get("jobs"))
        raise Wrong(reasons)

    for path in unknown_fields:
        _drop_field(raw, path)
    try:
        return msgspec.convert(raw, Document)
    except msgspec.ValidationError as error:
        raise Wrong([str(error)]) from error


def _json_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line, or raise `Wrong`."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Wrong([f"not JSON: {error}; {FORM}"]) from error
    if not isinstance(raw, dict):
        raise Wrong([FORM])
    return raw


def _requests_against(jobs: Any) -> Iterator[str]:
    """Yield the reasons against the requests of a document that has the wrong form elsewhere."""
    if not isinstance(jobs, list):
        return
    for number, job in enumerate(jobs):
        if not isinstance(job, dict):
            continue
        name = str(job.get("job"))
        fields = job.get("request")
        if isinstance(fields, dict):
            yield from request_against(number, name, fields)


def request_against(number: int, job: str, fields: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons against the request of one job, the `number`th of its document."""
    for why in reasons_against(job, fields):
        yield f"jobs[{number}].request.{why}"


def _drop_field(raw: Any, path: str) -> None:
    """Take a field out. Its path is as in a reason, e.g. `jobs[2].progress.speed`."""
    steps = path.replace("[", ".").replace("]", "").split(".")
    field = steps.pop()
    for step in steps:
        raw = raw[int(step)] if isinstance(raw, list) else raw[step]
    raw.pop(field, None)


def names_against(said: Document) -> Iterator[str]:
    """Yield a reason for each name that two nodes or two jobs have."""
    node_names = [node.name for node in said.nodes]
    job_names = [job.job for job in said.jobs]
    yield from _repeated_names("nodes", node_names)
    yield from _repeated_names("jobs", job_names)


def _repeated_names(field: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a reason for each name that occurs more than once in a list of the document."""
    for name, number in Counter(names).items():
        if number > 1:
            yield f"{field}: {name!r} is there {number} times"
