"""The input of `weir decide`: one JSON document on each line.

    {"now": s, "nodes": [Node, ...], "jobs": [JobSaid, ...], "quotas": {namespace: Quota, ...}}
    Quota: {"cpu", "memory_gib", "gpu"}

A value that may be unknown may be absent or null. NaN and Infinity, which JSON does not have, are
read as Python writes them, and count as unknown. Every error in a document is listed.

The request of a job has the fields of `JobRequested`, with these additions: a plain number stands
for a span with one size; `program`, `epochs`, `batch`, `ps` and `workers` may be absent (unknown,
1, 1, 0 and 1); integral floats are integers. `ps` may be 0 for all-reduce jobs, whose batch is the
global one. If the resources of a job name no chief, its chief requests nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from services.allocator.admission.validation import field_reasons
from services.allocator.policies.contract import Quotas
from services.allocator.policies.registry import POLICIES
from shared.messages import JobRequested, Span, Taint


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document."""


class Free(Said, frozen=True, kw_only=True):
    cpu: float | None = None
    memory_gib: float | None = None
    gpu: float | None = None


class NodeDocument(Said, frozen=True, kw_only=True):
    """One node: its resources, and the free part of them (absent: the part that our tasks leave).

    Absent cpu or memory means more than enough of it; absent `gpu` means no device. `labels` and
    `taints` are as in Kubernetes.
    """

    name: str
    cpu: float | None = None
    memory_gib: float | None = None
    gpu: float | None = None
    kind: str | None = None
    free: Free | None = None
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()


class Current(Said, frozen=True, kw_only=True):
    """The nodes of a job's running tasks, one for each. Without ps and workers no task runs."""

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


class JobDocument(Said, frozen=True, kw_only=True):
    """One job. `current` null: no task of it runs; absent: the document has no information about
    it.
    """

    job: str
    request: dict[str, Any]
    submitted_s: float | None = None
    current: Current | UnsetType | None = UNSET
    observed: tuple[Speed, ...] | None = ()
    progress: Progress | None = None
    pause_s: float | None = None


class Document(Said, frozen=True, kw_only=True):
    now: float
    nodes: tuple[NodeDocument, ...] = ()
    jobs: tuple[JobDocument, ...] = ()
    quotas: Quotas = {}
    """A namespace without a quota has no limit, nor has a resource that its quota does not name."""


class InvalidDocument(ValueError):
    """A document that cannot be used; `reasons` has every error in it."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


FORM = "a document is a JSON object with `now`, `nodes` and `jobs`"
NO_SUCH_FIELD = ": no such field"
_decoder = msgspec.json.Decoder(Document)


def read_document(line: bytes) -> Document:
    """Return the document of a line, or raise `InvalidDocument`. Its requests are read later, by
    `read_request`.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _document_of_python(line)


def _document_of_python(line: bytes) -> Document:
    """Read a line with Python's JSON decoder: it accepts NaN, and unknown fields are ignored.

    Raise `InvalidDocument` with every error if that fails, too.
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
        raise InvalidDocument(reasons)

    for path in unknown_fields:
        _drop_field(raw, path)
    try:
        return msgspec.convert(raw, Document)
    except msgspec.ValidationError as error:
        raise InvalidDocument([str(error)]) from error


def _json_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line, or raise `InvalidDocument`."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument([f"not JSON: {error}; {FORM}"]) from error
    if not isinstance(raw, dict):
        raise InvalidDocument([FORM])
    return raw


def _requests_against(jobs: Any) -> Iterator[str]:
    """Yield the errors in the requests of a document that has errors elsewhere."""
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
    """Yield the errors in the request of one job; `number` is its index in the document."""
    for why in reasons_against(job, fields):
        yield f"jobs[{number}].request.{why}"


def _drop_field(raw: Any, path: str) -> None:
    """Remove a field. Its path is as in an error, for example `jobs[2].progress.speed`."""
    steps = path.replace("[", ".").replace("]", "").split(".")
    field = steps.pop()
    for step in steps:
        raw = raw[int(step)] if isinstance(raw, list) else raw[step]
    raw.pop(field, None)


def names_against(said: Document) -> Iterator[str]:
    """Yield an error for each name that occurs twice among the nodes or among the jobs."""
    node_names = [node.name for node in said.nodes]
    job_names = [job.job for job in said.jobs]
    yield from _repeated_names("nodes", node_names)
    yield from _repeated_names("jobs", job_names)


def _repeated_names(field: str, names: Iterable[str]) -> Iterator[str]:
    """Yield an error for each name that occurs more than once in a list of the document."""
    for name, number in Counter(names).items():
        if number > 1:
            yield f"{field}: {name!r} occurs {number} times"


Fields = Mapping[str, Any]
SPANS = {"batch": 1, "ps": 0, "workers": 1}
"""The default of each span."""
NO_CHIEF = {"cpu": 0.0, "memory_gib": 0.0, "gpu": 0}


def read_request(job: str, fields: Fields) -> JobRequested:
    """Return the request. Its fields must have no errors (`reasons_against`)."""
    said = _with_defaults(job, fields)
    ps = Span(**said["ps"])
    asked = msgspec.convert(_valid_placeholder(said), JobRequested)
    return replace(asked, job=job, ps=ps)


def reasons_against(job: str, fields: Fields) -> Iterator[str]:
    """Yield every error in a request."""
    said = _with_defaults(job, fields)
    yield from field_reasons(JobRequested, _valid_placeholder(said), "")
    for name in SPANS:
        yield from _against_span(name, said[name])
    policy = said.get("policy")
    if isinstance(policy, str) and policy not in POLICIES:
        names = ", ".join(sorted(POLICIES))
        yield f"policy: {policy!r} is not known; use one of {names}"


def _against_span(name: str, span: Any) -> Iterator[str]:
    """Yield the error in a span, if there is one."""
    least = 0 if name == "ps" else 1
    try:
        start = msgspec.convert(span["start"], int)
        low = msgspec.convert(span["min"], int)
        high = msgspec.convert(span["max"], int)
    except (KeyError, TypeError, msgspec.ValidationError):
        # `field_reasons` reports this error for `batch` and `workers`.
        if name == "ps":
            yield "ps: needs start, min and max, whole numbers of at least 0"
        return
    if not least <= low <= start <= high:
        yield f"{name}: {least} <= min {low} <= start {start} <= max {high} does not hold"


def _with_defaults(job: str, fields: Fields) -> dict[str, Any]:
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


def _valid_placeholder(said: Fields) -> dict[str, Any]:
    """Return the fields with the job name `any` and one ps, to check all other fields.

    The live service refuses some names, and 0 ps; a simulator may use them.
    """
    return {**said, "job": "any", "ps": {"start": 1, "min": 1, "max": 1}}


def _whole_number(value: Any) -> Any:
    """Return the value with 128 in place of `128.0`, also inside objects and lists."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole_number(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole_number(inner) for inner in value]
    return value
