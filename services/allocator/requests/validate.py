"""Validate a request: every reason against it, at once.

Law: for any bytes the answer is a `JobRequested` or a `Wrong` with at least one reason; never an
exception. The decoder stops at its first error, so each field is converted for itself,
nested ones too; then come the rules that hold between fields.
"""

from __future__ import annotations

import difflib
import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

import msgspec

from services.allocator.placing.placement import ROLES
from services.allocator.policies.contract import Quotas
from services.allocator.policies.registry import POLICIES
from services.allocator.requests import allowed
from services.allocator.requests.wording import reworded
from services.allocator.rules import Limit, Rules
from shared import checkpoint_folders
from shared.messages import DNS_LABEL, CheckpointRule, JobRequested, RoleResources, Span, Volume
from shared.permissions import MOST_TRAINERS
from shared.unknown_fields import struct_type
from shared.words import counted

LOCAL = ("file", "ram")  # schemes of TensorFlow's that lead into the node, or nowhere

MAX_PRIORITY = "WEIR_ALLOCATOR_MAX_PRIORITY"
LIMITS = "WEIR_ALLOCATOR_LIMITS"
"""The settings that a refusal names."""
LONGEST_JOB = 40
LONGEST_NAMESPACE = 63
LARGEST = 131_072
"""Bytes of a request: each decision repeats it beside a plan of every task, and has to fit into one
message itself.
"""
MOST_TASKS = 1_000
"""Of one role."""
LEAST_AMOUNT = 0.001
"""Cores or GiB of a task that has any: a thousandth is the smallest that Kubernetes counts."""
ANY = Rules(images=())
"""Of a cluster that allows every namespace and image, and no folder of a node."""
MOST_REASONS = 20
LONGEST_REASON = 300
"""The number of reasons in an answer, and the characters of each."""


class Wrong(msgspec.Struct, frozen=True):
    """The reasons against a request, and the name under which it is refused."""

    job: str
    namespace: str
    reasons: tuple[str, ...]


def check(body: bytes, rules: Rules = ANY) -> JobRequested | Wrong:
    """Return the request, or the reasons against it."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Wrong(_invalid(body), "-", (f"not JSON: {error}",))
    if not isinstance(raw, dict):
        return Wrong(_invalid(body), "-", ("a request is a JSON object",))
    reasons = _size_reasons(body)
    if not reasons:
        reasons += field_reasons(JobRequested, raw, "")
        reasons += _rule_reasons(_parts(raw), rules)
    if not reasons:
        try:
            return msgspec.json.decode(body, type=JobRequested)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reasons.append(str(error))
    job, namespace = _name(raw, body)
    return Wrong(job, namespace, brief(reasons))


def reasons_against(request: JobRequested, rules: Rules = ANY) -> tuple[str, ...]:
    """Return the reasons against a request that could be read."""
    checked = check(msgspec.json.encode(request), rules)
    if isinstance(checked, Wrong):
        return checked.reasons
    return ()


def brief(reasons: list[str]) -> tuple[str, ...]:
    """Return as many of the reasons as a person reads, and as fit into an answer, each
    shortened.
    """
    short = []
    for reason in reasons[:MOST_REASONS]:
        if len(reason) > LONGEST_REASON:
            reason = f"{reason[:LONGEST_REASON]}..."
        short.append(reason)
    if len(reasons) > MOST_REASONS:
        short.append(f"... and {len(reasons) - MOST_REASONS} more")
    return tuple(short)


def _size_reasons(body: bytes) -> list[str]:
    if len(body) <= LARGEST:
        return []
    return [f"the request has {len(body):,} bytes, more than {LARGEST:,}"]


# ---------------------------------------------------------------- the name it is answered under


def _name(raw: Mapping[str, Any], body: bytes) -> tuple[str, str]:
    """Return the job and the namespace under which a request is answered."""
    job = raw.get("job", "")
    if not _label(job, LONGEST_JOB):
        job = _invalid(body)
    namespace = raw.get("namespace", "default")
    if not _label(namespace, LONGEST_NAMESPACE):
        namespace = "-"
    return job, namespace


def answered_as(subject: str, body: bytes) -> tuple[str, str]:
    """Return the job and the namespace under which an unreadable request is answered: those of its
    subject.

    The server checks who may publish on a subject; a body can name anybody's job.
    """
    _, _, _, *names = subject.split(".")
    if len(names) == 2 and _label(names[1], LONGEST_JOB) and _label(names[0], LONGEST_NAMESPACE):
        return names[1], names[0]
    return _invalid(body), "-"


def _label(name: object, longest: int) -> bool:
    return isinstance(name, str) and len(name) <= longest and bool(re.fullmatch(DNS_LABEL, name))


def _invalid(body: bytes) -> str:
    return f"invalid-{hashlib.sha256(body).hexdigest()[:12]}"


# ---------------------------------------------------------------- field by field


def field_reasons(kind: type[msgspec.Struct], raw: Mapping[str, Any], path: str) -> list[str]:
    """Return the reasons against an object's fields, each for itself. `path`: of the object."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    unknown = [name for name in raw if name not in fields and name != _tag(kind)]
    reasons = [_unknown(path + name, name, fields) for name in unknown[: MOST_REASONS + 1]]
    for name, field in fields.items():
        if name in raw:
            reasons += _value_reasons(field.type, raw[name], path + name)
        elif field.required:
            reasons.append(f"{path}{name}: is required")
    return reasons


def _value_reasons(kind: Any, value: Any, path: str) -> list[str]:
    reasons: list[str] = []
    if get_origin(kind) is dict and isinstance(value, dict):
        for name, entry in value.items():
            reasons += _entry_reasons(kind, name, entry, path)
        return reasons
    struct = struct_type(kind)
    if struct and isinstance(value, dict):
        return field_reasons(struct, value, f"{path}.")
    if struct and isinstance(value, list) and getattr(kind, "__origin__", None) is tuple:
        for i, item in enumerate(value):
            reasons += _value_reasons(struct, item, f"{path}[{i}]")
        return reasons
    wrong = _conversion_error(kind, value)
    if wrong:
        reasons.append(f"{path}: {wrong}")
    return reasons


def quota_reasons(raw: Any, path: str) -> list[str]:
    return _value_reasons(Quotas, raw, path)


def _entry_reasons(kind: Any, name: str, value: Any, path: str) -> list[str]:
    """Return the reasons against one entry of a mapping."""
    names, values = get_args(kind)
    wrong = _conversion_error(names, name)
    if wrong:
        return [f"{path}: {wrong}"]
    return _value_reasons(values, value, f"{path}.{name}")


def _conversion_error(kind: Any, value: Any) -> str:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        return reworded(kind, str(error), value)
    return ""


def _unknown(path: str, name: str, fields: Iterable[str]) -> str:
    why = allowed.never(path)
    if why:
        return f"{path}: {why}"
    near = difflib.get_close_matches(name, list(fields), n=1)
    if near:
        return f"{path}: no such field; did you mean {near[0]!r}?"
    return f"{path}: no such field"


def _tag(kind: type[msgspec.Struct]) -> str | None:
    return kind.__struct_config__.tag_field


# ---------------------------------------------------------------- between fields


def _parts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return each field that can be read for itself."""
    parts: dict[str, Any] = {}
    for field in msgspec.structs.fields(JobRequested):
        name = field.encode_name
        if name in raw and not _conversion_error(field.type, raw[name]):
            parts[name] = msgspec.convert(raw[name], field.type)
    return parts


def _rule_reasons(parts: Mapping[str, Any], rules: Rules) -> Iterator[str]:
    """Yield the reasons of the rules that hold between fields."""
    ps = parts.get("ps")
    workers = parts.get("workers")
    batch = parts.get("batch")
    yield from _span("ps", ps)
    yield from _span("workers", workers)
    yield from _span("batch", batch)
    yield from _device_batch(parts.get("device_batch_max"), batch)
    yield from _amounts(parts.get("resources"))
    yield from _owner_limits(parts, rules)
    yield from _policy(parts.get("policy"))
    yield from _checkpoint(parts.get("checkpoint"), parts.get("namespace", "default"))
    yield from _volumes(parts.get("volumes", ()))
    yield from _grace(parts.get("grace_s"), rules)
    yield from _trainers(ps, workers)
    yield from allowed.reasons(parts, rules)


def _span(name: str, span: Span | None) -> list[str]:
    if span is None:
        return []
    if not span.min <= span.start <= span.max:
        return [f"{name}: min {span.min} <= start {span.start} <= max {span.max} does not hold"]
    if name != "batch" and span.max > MOST_TASKS:
        most = counted(MOST_TASKS, "task")
        return [f"{name}.max: {span.max} is more than {most}"]
    return []


def _trainers(ps: Span | None, workers: Span | None) -> list[str]:
    if ps is None or workers is None:
        return []
    together = ps.max + workers.max
    if together < MOST_TRAINERS:
        return []
    most = counted(MOST_TRAINERS, "task")
    return [f"ps.max + workers.max: {together} and a chief are more than {most}"]


def _device_batch(most: int | None, batch: Span | None) -> list[str]:
    if most is None or batch is None or most >= batch.min:
        return []
    return [f"device_batch_max: {most} is less than batch.min, {batch.min}"]


def _grace(grace_s: float | None, rules: Rules) -> list[str]:
    if grace_s is None or grace_s <= rules.grace_max_s:
        return []
    limit = f"{rules.grace_max_s:g}, the limit of this cluster (WEIR_ALLOCATOR_GRACE_MAX_S)"
    return [f"grace_s: {grace_s:g} is more than {limit}"]


def _amounts(resources: RoleResources | None) -> Iterator[str]:
    """Refuse amounts too small for Kubernetes and the policies to count with; 0: absent."""
    if resources is None:
        return
    for role in ROLES:
        for name in ("cpu", "memory_gib"):
            amount = getattr(getattr(resources, role), name)
            if 0 < amount < LEAST_AMOUNT:
                yield (
                    f"resources.{role}.{name}: {amount:g} is less than {LEAST_AMOUNT}, "
                    "the least that a task may have"
                )


def _owner_limits(parts: Mapping[str, Any], rules: Rules) -> Iterator[str]:
    """Refuse more than the cluster's owner allows, everywhere or in one namespace."""
    namespace = parts.get("namespace", "default")
    limit = rules.limits.get(namespace, Limit())
    most = limit.priority
    setting = LIMITS
    if most is None:
        most = rules.max_priority
        setting = MAX_PRIORITY
    priority = parts.get("priority", 0)
    if priority > most:
        yield (
            f"priority: {priority} is more than {most}, "
            f"the highest in namespace {namespace!r} ({setting})"
        )
    for name in ("ps", "workers", "batch"):
        span = parts.get(name)
        largest = getattr(limit, name)
        if span is not None and largest is not None and span.max > largest:
            yield (
                f"{name}.max: {span.max} is more than {largest}, "
                f"the largest in namespace {namespace!r} ({LIMITS})"
            )


def _policy(name: str | None) -> list[str]:
    if name is None or name in POLICIES:
        return []
    reason = f"policy: {name!r} is none; there are {', '.join(sorted(POLICIES))}"
    if ":" in name:
        reason += f"; one of your own is known where WEIR_ALLOCATOR_POLICIES={name} is set"
    return [reason]


def _checkpoint(rule: CheckpointRule | None, namespace: str) -> list[str]:
    if rule is None:
        return []
    reasons = []
    if rule.path is not None and not _is_folder(rule.path):
        reasons.append(
            f"checkpoint.path: {rule.path!r} is neither a relative path "
            "below the namespace's checkpoint folder "
            "nor the URL of an object store's, such as gs://bucket/folder"
        )
    earlier = rule.continue_from
    if earlier is None:
        return reasons
    if not _is_folder(earlier) or not checkpoint_folders.is_in_namespace(earlier, namespace):
        reasons.append(
            f"checkpoint.continue_from: {earlier!r} is not the folder of a job "
            f"in namespace {namespace!r}, such as {namespace}/{checkpoint_folders.EXAMPLE}"
        )
    return reasons


def _is_folder(path: str) -> bool:
    """Return True if a text is a relative path that stays below its beginning, or the URL of an
    object store.
    """
    if path == "" or path.startswith("/") or ".." in path.split("/"):
        return False
    scheme, separator, rest = path.partition("://")
    if not separator:
        return True
    # A URL must not name a file of the node, nor the memory of one process.
    if re.fullmatch(r"[a-z][a-z0-9+]*", scheme) is None or scheme in LOCAL:
        return False
    return rest != ""


def _volumes(volumes: tuple[Volume, ...]) -> Iterator[str]:
    for i, volume in enumerate(volumes):
        if (volume.claim is None) == (volume.host_path is None):
            yield f"volumes[{i}]: needs either claim or host_path"
    for i, volume in enumerate(volumes):
        for why in _mount(volume):
            yield f"volumes[{i}].{why}"
    for field in ("name", "mount_path"):
        numbers = Counter(getattr(volume, field) for volume in volumes)
        for value in sorted(numbers):
            if numbers[value] > 1:
                yield f"volumes: {field} {value!r} occurs twice"


def _mount(volume: Volume) -> Iterator[str]:
    """Refuse a volume in the way of the folders that every pod has of Weir."""
    if volume.name.startswith("weir-"):
        yield f"name: {volume.name!r}: names that begin with weir- are Weir's"
    path = posixpath.normpath(volume.mount_path)
    if path.strip("/") in ("", "tmp") or ":" in path:
        yield (
            f"mount_path: {volume.mount_path!r} cannot be mounted; "
            "`/` is the image's, /tmp is each pod's own"
        )
