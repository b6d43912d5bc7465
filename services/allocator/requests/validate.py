"""Is a request valid? Every reason why not, at once.

Law: whatever the bytes are, the answer is a `JobRequested` or a `Wrong` with at least one reason; never an exception.
The decoder stops at its first error, so each field is converted for itself, nested ones too; then come the rules that
hold between fields.
"""

from __future__ import annotations

import difflib
import hashlib
import posixpath
import re
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

MAX_PRIORITY, LIMITS = "WEIR_ALLOCATOR_MAX_PRIORITY", "WEIR_ALLOCATOR_LIMITS"
"""The settings that a refusal names."""
LONGEST_JOB, LONGEST_NAMESPACE = 40, 63
LARGEST = 131_072
"""Bytes of a request: each decision repeats it beside a plan of every task, and has to fit into one message itself."""
MOST_TASKS = 1_000
"""Of one role."""
LEAST_AMOUNT = 0.001
"""Cores or GiB of a task that has any: a thousandth is the smallest that Kubernetes counts."""
ANY = Rules(images=())
"""Of a cluster that allows every namespace and image, and no folder of a node."""
MOST_REASONS, LONGEST_REASON = 20, 300
"""How many of them are told, and how many characters of each."""


class Wrong(msgspec.Struct, frozen=True):
    """Why a request is refused, and under which name to say so."""

    job: str
    namespace: str
    reasons: tuple[str, ...]


def check(body: bytes, rules: Rules = ANY) -> JobRequested | Wrong:
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Wrong(_invalid(body), "-", (f"not JSON: {error}",))
    if not isinstance(raw, dict):
        return Wrong(_invalid(body), "-", ("a request is a JSON object",))
    reasons = _size_reasons(body) or [*field_reasons(JobRequested, raw, ""), *_rule_reasons(_parts(raw), rules)]
    if not reasons:
        try:
            return msgspec.json.decode(body, type=JobRequested)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reasons = [str(error)]
    return Wrong(*_name(raw, body), brief(reasons))


def reasons_against(request: JobRequested, rules: Rules = ANY) -> tuple[str, ...]:
    """What is wrong with a request that could be read."""
    checked = check(msgspec.json.encode(request), rules)
    return checked.reasons if isinstance(checked, Wrong) else ()


def brief(reasons: list[str]) -> tuple[str, ...]:
    """So much of them as a person reads, and as fits into an answer."""
    told = tuple(r if len(r) <= LONGEST_REASON else f"{r[:LONGEST_REASON]}..." for r in reasons[:MOST_REASONS])
    return told if len(reasons) <= MOST_REASONS else (*told, f"... and {len(reasons) - MOST_REASONS} more")


def _size_reasons(body: bytes) -> list[str]:
    return [f"the request has {len(body):,} bytes, more than {LARGEST:,}"] if len(body) > LARGEST else []


# ---------------------------------------------------------------- the name it is answered under


def _name(raw: Mapping[str, Any], body: bytes) -> tuple[str, str]:
    job, namespace = raw.get("job", ""), raw.get("namespace", "default")
    return (
        job if _label(job, LONGEST_JOB) else _invalid(body),
        namespace if _label(namespace, LONGEST_NAMESPACE) else "-",
    )


def answered_as(subject: str, body: bytes) -> tuple[str, str]:
    """Return the job and the namespace under which an unreadable request is answered: those of its subject.

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
    fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
    strange = [name for name in raw if name not in fields and name != _tag(kind)]
    reasons = [_unknown(path + name, name, fields) for name in strange[: MOST_REASONS + 1]]
    for name, field in fields.items():
        if name in raw:
            reasons += _value_reasons(field.type, raw[name], path + name)
        elif field.required:
            reasons.append(f"{path}{name}: is required")
    return reasons


def _value_reasons(kind: Any, value: Any, path: str) -> list[str]:
    if get_origin(kind) is dict and isinstance(value, dict):
        return [reason for name in value for reason in _entry_reasons(kind, name, value[name], path)]
    struct = struct_type(kind)
    if struct and isinstance(value, dict):
        return field_reasons(struct, value, f"{path}.")
    if struct and isinstance(value, list) and getattr(kind, "__origin__", None) is tuple:
        return [r for i, item in enumerate(value) for r in _value_reasons(struct, item, f"{path}[{i}]")]
    wrong = _conversion_error(kind, value)
    return [f"{path}: {wrong}"] if wrong else []


def quota_reasons(raw: Any, path: str) -> list[str]:
    return _value_reasons(Quotas, raw, path)


def _entry_reasons(kind: Any, name: str, value: Any, path: str) -> list[str]:
    """Of one entry of a mapping."""
    names, values = get_args(kind)
    wrong = _conversion_error(names, name)
    return [f"{path}: {wrong}"] if wrong else _value_reasons(values, value, f"{path}.{name}")


def _conversion_error(kind: Any, value: Any) -> str:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        return reworded(kind, str(error), value)
    return ""


def _unknown(path: str, name: str, fields: Iterable[str]) -> str:
    if why := allowed.never(path):
        return f"{path}: {why}"
    near = difflib.get_close_matches(name, list(fields), n=1)
    return f"{path}: no such field" + (f"; did you mean {near[0]!r}?" if near else "")


def _tag(kind: type[msgspec.Struct]) -> str | None:
    return kind.__struct_config__.tag_field


# ---------------------------------------------------------------- between fields


def _parts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Each field that can be read for itself."""
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(JobRequested)}
    return {n: msgspec.convert(raw[n], t) for n, t in fields.items() if n in raw and not _conversion_error(t, raw[n])}


def _rule_reasons(parts: Mapping[str, Any], rules: Rules) -> list[str]:
    return [
        *(r for name in ("ps", "workers", "batch") for r in _span(name, parts.get(name))),
        *_device_batch(parts.get("device_batch_max"), parts.get("batch")),
        *_amounts(parts.get("resources")),
        *_owner_limits(parts, rules),
        *_policy(parts.get("policy")),
        *_checkpoint(parts.get("checkpoint"), parts.get("namespace", "default")),
        *_volumes(parts.get("volumes", ())),
        *_grace(parts.get("grace_s"), rules),
        *_trainers(parts.get("ps"), parts.get("workers")),
        *allowed.reasons(parts, rules),
    ]


def _span(name: str, span: Span | None) -> list[str]:
    if span is None:
        return []
    if not span.min <= span.start <= span.max:
        return [f"{name}: min {span.min} <= start {span.start} <= max {span.max} does not hold"]
    if name != "batch" and span.max > MOST_TASKS:
        return [f"{name}.max: {span.max} is more than {counted(MOST_TASKS, 'task')}"]
    return []


def _trainers(ps: Span | None, workers: Span | None) -> list[str]:
    if ps is None or workers is None or ps.max + workers.max < MOST_TRAINERS:
        return []
    return [f"ps.max + workers.max: {ps.max + workers.max} and a chief are more than {counted(MOST_TRAINERS, 'task')}"]


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
    """A resource of a task is absent (0), or a number that Kubernetes and the policies can count with."""
    for role in ROLES if resources else ():
        for name in ("cpu", "memory_gib"):
            amount = getattr(getattr(resources, role), name)
            if 0 < amount < LEAST_AMOUNT:
                yield f"resources.{role}.{name}: {amount:g} is less than {LEAST_AMOUNT}, the least that a task may have"


def _owner_limits(parts: Mapping[str, Any], rules: Rules) -> Iterator[str]:
    """What the cluster's owner allows at most, everywhere or in one namespace."""
    namespace = parts.get("namespace", "default")
    limit = rules.limits.get(namespace, Limit())
    most, setting = (rules.max_priority, MAX_PRIORITY) if limit.priority is None else (limit.priority, LIMITS)
    priority = parts.get("priority", 0)
    if priority > most:
        yield f"priority: {priority} is more than {most}, the highest in namespace {namespace!r} ({setting})"
    for name in ("ps", "workers", "batch"):
        span, largest = parts.get(name), getattr(limit, name)
        if span is not None and largest is not None and span.max > largest:
            yield f"{name}.max: {span.max} is more than {largest}, the largest in namespace {namespace!r} ({LIMITS})"


def _policy(name: str | None) -> list[str]:
    if name is None or name in POLICIES:
        return []
    own = f"; one of your own is known where WEIR_ALLOCATOR_POLICIES={name} is set" if ":" in name else ""
    return [f"policy: {name!r} is none; there are {', '.join(sorted(POLICIES))}{own}"]


def _checkpoint(rule: CheckpointRule | None, namespace: str) -> list[str]:
    if rule is None:
        return []
    reasons = []
    if rule.path is not None and not _is_folder(rule.path):
        reasons.append(
            f"checkpoint.path: {rule.path!r} is neither a relative path below the namespace's checkpoint folder "
            "nor the URL of an object store's, such as gs://bucket/folder"
        )
    earlier = rule.continue_from
    if earlier is not None and not (_is_folder(earlier) and checkpoint_folders.is_in_namespace(earlier, namespace)):
        reasons.append(
            f"checkpoint.continue_from: {earlier!r} is not the folder of a job in namespace {namespace!r}, such as "
            f"{namespace}/{checkpoint_folders.EXAMPLE}"
        )
    return reasons


def _is_folder(path: str) -> bool:
    """Return whether a text is a relative path that stays below where it begins, or the URL of an object store."""
    return path != "" and not path.startswith("/") and ".." not in path.split("/") and _elsewhere(path)


def _elsewhere(path: str) -> bool:
    """A URL is not to name a file of the node, nor the memory of one process."""
    scheme, separator, rest = path.partition("://")
    return not separator or (
        re.fullmatch(r"[a-z][a-z0-9+]*", scheme) is not None and scheme not in LOCAL and rest != ""
    )


def _volumes(volumes: tuple[Volume, ...]) -> list[str]:
    reasons = [
        f"volumes[{i}]: needs either claim or host_path"
        for i, volume in enumerate(volumes)
        if (volume.claim is None) == (volume.host_path is None)
    ]
    reasons += [f"volumes[{i}].{why}" for i, volume in enumerate(volumes) for why in _mount(volume)]
    for what in ("name", "mount_path"):
        values = [getattr(volume, what) for volume in volumes]
        reasons += [f"volumes: {what} {v!r} occurs twice" for v in sorted({v for v in values if values.count(v) > 1})]
    return reasons


def _mount(volume: Volume) -> list[str]:
    """What is in the way of what every pod has of Weir."""
    path = posixpath.normpath(volume.mount_path)
    own = [f"name: {volume.name!r}: names that begin with weir- are Weir's"] if volume.name.startswith("weir-") else []
    if path.strip("/") in ("", "tmp") or ":" in path:
        own.append(f"mount_path: {volume.mount_path!r} cannot be mounted; `/` is the image's, /tmp is each pod's own")
    return own
