"""Validate a request: collect every reason against it.

Law: for any bytes the result is a `JobRequested` or an `InvalidRequest` with at least one reason;
never an exception. The decoder stops at its first error, so each field is converted separately,
nested ones too. Then the rules between fields are checked. Decoder errors are reworded for people:
a rule in words in place of a pattern, an object by its fields, and the value in place of its type
alone.
"""

from __future__ import annotations

import difflib
import hashlib
import posixpath
import re
import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from services.allocator.admission import pod_settings
from services.allocator.placement.placers import ROLES
from services.allocator.pod_policy import ALLOW_ALL
from services.allocator.policies.contract import Quotas
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Limit, Rules
from shared import checkpoints
from shared.auth.permissions import MOST_TRAINERS
from shared.bounds import plain_type, struct_type
from shared.messages import (
    DATA_KEY,
    DNS_LABEL,
    ENV_NAME,
    LABEL_KEY,
    LABEL_VALUE,
    PARAM_NAME,
    SUBDOMAIN,
    CheckpointRule,
    Digest,
    JobRequested,
    RoleResources,
    Span,
    Volume,
)
from shared.text import format_count

LOCAL_SCHEMES = ("file", "ram")  # of TensorFlow, for files of the node and for the process memory

MAX_PRIORITY = "WEIR_ALLOCATOR_MAX_PRIORITY"
LIMITS = "WEIR_ALLOCATOR_LIMITS"
"""The names of the settings that a refusal mentions."""
LONGEST_JOB = 40
LONGEST_NAMESPACE = 63
LARGEST_REQUEST = 131_072
"""The largest size of a request in bytes. Each decision repeats the request beside a plan of every
task, and has to fit into one message.
"""
MOST_PARAMS = 100
LARGEST_PARAMS = 16_384
"""The largest size of all parameters of a program as JSON, in bytes."""
MOST_TASKS = 1_000
"""The most tasks of one role."""
LEAST_AMOUNT = 0.001
"""The smallest cores or GiB of a task, unless they are 0. Kubernetes counts in thousandths."""
ANY_CLUSTER = Rules(images=(), pod_rules=ALLOW_ALL)
"""The rules of a cluster that allows everything except folders of a node."""
MOST_REASONS = 20
LONGEST_REASON = 300
"""The most reasons in an answer, and the most characters of each."""


class InvalidRequest(msgspec.Struct, frozen=True):
    """The reasons against a request, and the job and namespace of the refusal."""

    job: str
    namespace: str
    reasons: tuple[str, ...]


def check_request(body: bytes, rules: Rules = ANY_CLUSTER) -> JobRequested | InvalidRequest:
    """Return the request, or the reasons against it."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _nameless(body, f"not JSON: {error}")
    if not isinstance(raw, dict):
        return _nameless(body, "a request is a JSON object")

    reasons = _size_reasons(body)
    if not reasons:
        reasons += field_reasons(JobRequested, raw, "")
        reasons += _rule_reasons(_readable_fields(raw), rules)
    if not reasons:
        try:
            return msgspec.json.decode(body, type=JobRequested)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reasons.append(str(error))

    job, namespace = _name(raw, body)
    return InvalidRequest(job, namespace, shorten_reasons(reasons))


def reasons_against(request: JobRequested, rules: Rules = ANY_CLUSTER) -> tuple[str, ...]:
    """Return the reasons against a request that could be read."""
    checked = check_request(msgspec.json.encode(request), rules)
    if isinstance(checked, InvalidRequest):
        return checked.reasons
    return ()


def shorten_reasons(reasons: list[str]) -> tuple[str, ...]:
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
    """Refuse a request that is too large."""
    if len(body) <= LARGEST_REQUEST:
        return []
    return [f"the request has {len(body):,} bytes, more than {LARGEST_REQUEST:,}"]


# ---------------------------------------------------------------- the name it is answered under


def _nameless(body: bytes, reason: str) -> InvalidRequest:
    """Return the reason against a request without a name that could be read."""
    return InvalidRequest(_invalid_name(body), "-", (reason,))


def _name(raw: Mapping[str, Any], body: bytes) -> tuple[str, str]:
    """Return the job and the namespace of the answer to a request."""
    job = raw.get("job", "")
    if not _is_label(job, LONGEST_JOB):
        job = _invalid_name(body)
    namespace = raw.get("namespace", "default")
    if not _is_label(namespace, LONGEST_NAMESPACE):
        namespace = "-"
    return job, namespace


def answer_name(subject: str, body: bytes) -> tuple[str, str]:
    """Return the job and the namespace of the answer to an unreadable request: those of its
    subject.

    The server checks the permission to publish on a subject; a body can name anybody's job.
    """
    _, _, _, *names = subject.split(".")
    if len(names) == 2:
        namespace, job = names
        if _is_label(job, LONGEST_JOB) and _is_label(namespace, LONGEST_NAMESPACE):
            return job, namespace
    return _invalid_name(body), "-"


def _is_label(name: object, longest: int) -> bool:
    """Return True if a name is a DNS label of at most so many characters."""
    if not isinstance(name, str) or len(name) > longest:
        return False
    return re.fullmatch(DNS_LABEL, name) is not None


def _invalid_name(body: bytes) -> str:
    digest = hashlib.sha256(body).hexdigest()
    return f"invalid-{digest[:12]}"


# ---------------------------------------------------------------- field by field


def field_reasons(kind: type[msgspec.Struct], raw: Mapping[str, Any], path: str) -> list[str]:
    """Return the reasons against the fields of an object, each checked separately. `path`: of the
    object.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    reasons = []
    for name in _unknown_names(kind, raw, fields)[: MOST_REASONS + 1]:
        reasons.append(_unknown_reason(path + name, name, fields))

    for name, field in fields.items():
        if name in raw:
            reasons += _value_reasons(field.type, raw[name], path + name)
        elif field.required:
            reasons.append(f"{path}{name}: is required")
    return reasons


def _unknown_names(
    kind: type[msgspec.Struct], raw: Mapping[str, Any], fields: Collection[str]
) -> list[str]:
    """Return the names in an object that are neither fields nor its tag."""
    tag = kind.__struct_config__.tag_field
    return [name for name in raw if name not in fields and name != tag]


def _value_reasons(kind: Any, value: Any, path: str) -> list[str]:
    """Return the reasons against one value. Objects, lists of objects and mappings are checked part
    by part, so that every wrong part is named. `path`: of the value.
    """
    plain = plain_type(kind)
    if get_origin(plain) is dict and isinstance(value, dict):
        return _mapping_reasons(plain, value, path)
    struct = struct_type(kind)
    if struct and isinstance(value, dict):
        return field_reasons(struct, value, f"{path}.")
    if struct and isinstance(value, list) and get_origin(plain) is tuple:
        return _item_reasons(struct, value, path)
    if isinstance(value, list) and path in pod_settings.ONE_KIND:
        return [f"{path}: {pod_settings.ONE_KIND[path]}"]
    wrong = _conversion_error(kind, value)
    if wrong and path.startswith(TEXT_FIELDS) and isinstance(value, int | float):
        wrong = f"must be a string: write '{written_value(value)}' in quotes"
    if wrong:
        return [f"{path}: {wrong}"]
    return []


def quota_reasons(raw: Any, path: str) -> list[str]:
    return _value_reasons(Quotas, raw, path)


def _item_reasons(struct: type[msgspec.Struct], items: list[Any], path: str) -> list[str]:
    """Return the reasons against the items of a list of objects."""
    reasons = []
    for i, item in enumerate(items):
        reasons += _value_reasons(struct, item, f"{path}[{i}]")
    return reasons


def _mapping_reasons(kind: Any, entries: dict[Any, Any], path: str) -> list[str]:
    """Return the reasons against the entries of a mapping."""
    reasons = []
    for name, entry in entries.items():
        reasons += _entry_reasons(kind, name, entry, path)
    return reasons


def _entry_reasons(kind: Any, name: str, value: Any, path: str) -> list[str]:
    """Return the reasons against one entry of a mapping."""
    names, values = get_args(kind)
    wrong = _conversion_error(names, name)
    if wrong:
        return [f"{path}: {wrong}"]
    return _value_reasons(values, value, f"{path}.{name}")


def _conversion_error(kind: Any, value: Any) -> str:
    """Return why a value is not of this type, in plain words; empty: it is."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        return reword_error(kind, str(error), value)
    return ""


def _unknown_reason(path: str, name: str, fields: Iterable[str]) -> str:
    """Return the reason against a field that does not exist."""
    why = pod_settings.forbidden_reason(path)
    if why:
        return f"{path}: {why}"
    near = difflib.get_close_matches(name, list(fields), n=1)
    if near:
        return f"{path}: no such field; did you mean {near[0]!r}?"
    return f"{path}: no such field"


# ---------------------------------------------------------------- between fields


def _readable_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that can be read, each converted separately."""
    parts = {}
    for field in msgspec.structs.fields(JobRequested):
        name = field.encode_name
        if name not in raw:
            continue
        value = raw[name]
        if not _conversion_error(field.type, value):
            parts[name] = msgspec.convert(value, field.type)
    return parts


def _rule_reasons(parts: Mapping[str, Any], rules: Rules) -> Iterator[str]:
    """Yield the reasons of the rules that relate several fields to each other."""
    ps = parts.get("ps")
    workers = parts.get("workers")
    batch = parts.get("batch")
    namespace = parts.get("namespace", "default")

    yield from _span_reasons("ps", ps)
    yield from _span_reasons("workers", workers)
    yield from _span_reasons("batch", batch)
    yield from _device_batch_reasons(parts.get("device_batch_max"), batch)
    consistency = parts.get("consistency") or rules.consistency
    yield from _consistency_reasons(consistency, batch, parts.get("virtual_workers"))
    yield from _amount_reasons(parts.get("resources"))
    yield from _priority_reasons(parts.get("priority", 0), namespace, rules)
    yield from _limit_reasons(parts, namespace, rules)
    yield from _policy_reasons(parts.get("policy"))
    yield from _checkpoint_reasons(parts.get("checkpoint"), namespace)
    yield from _volume_reasons(parts.get("volumes", ()))
    yield from _param_reasons(parts.get("params", {}))
    yield from pod_settings.form_reasons(parts)
    yield from _grace_reasons(parts.get("grace_s"), rules)
    yield from _task_reasons(ps, workers)
    yield from pod_settings.permission_reasons(parts, rules)
    yield from pod_settings.policy_reasons(parts, rules)


def _span_reasons(name: str, span: Span | None) -> Iterator[str]:
    """Yield the reason against bounds that do not enclose the start, or against too many tasks of
    one role.
    """
    if span is None:
        return
    if not span.min <= span.start <= span.max:
        yield f"{name}: min {span.min} <= start {span.start} <= max {span.max} does not hold"
    elif name != "batch" and span.max > MOST_TASKS:
        most = format_count(MOST_TASKS, "task")
        yield f"{name}.max: {span.max} is more than {most}"


def _consistency_reasons(
    consistency: str, batch: Span | None, virtual_workers: int | None
) -> Iterator[str]:
    if consistency != "exact" and virtual_workers is not None:
        yield f"virtual_workers: only a job with consistency: exact has them, not {consistency}"
    if consistency == "exact" and batch is not None and batch.min != batch.max:
        yield (
            "consistency: exact needs updates of the same size: let batch.min and batch.max be"
            f" {batch.start}"
        )


def _task_reasons(ps: Span | None, workers: Span | None) -> Iterator[str]:
    """Refuse more tasks than a job may have in all."""
    if ps is None or workers is None:
        return
    tasks = ps.max + workers.max
    if tasks >= MOST_TRAINERS:
        most = format_count(MOST_TRAINERS, "task")
        yield f"ps.max + workers.max: {tasks} and a chief are more than {most}"


def _device_batch_reasons(most: int | None, batch: Span | None) -> Iterator[str]:
    """Yield the reason against a device's largest batch that is below the job's smallest batch."""
    if most is None or batch is None:
        return
    if most < batch.min:
        yield f"device_batch_max: {most} is less than batch.min, {batch.min}"


def _grace_reasons(grace_s: float | None, rules: Rules) -> Iterator[str]:
    """Yield the reason against a grace period (s) above the limit of the cluster."""
    limit_s = rules.grace_max_s
    if grace_s is None or grace_s <= limit_s:
        return
    yield (
        f"grace_s: {grace_s:g} is more than {limit_s:g}, "
        "the limit of this cluster (WEIR_ALLOCATOR_GRACE_MAX_S)"
    )


def _amount_reasons(resources: RoleResources | None) -> Iterator[str]:
    """Refuse amounts too small for Kubernetes and the policies to count with (0: absent), and
    several devices of one task.
    """
    if resources is None:
        return
    for role in ROLES:
        size = getattr(resources, role)
        for name in ("cpu", "memory_gib"):
            amount = getattr(size, name)
            if 0 < amount < LEAST_AMOUNT:
                yield (
                    f"resources.{role}.{name}: {amount:g} is less than {LEAST_AMOUNT}, "
                    "the least that a task may have"
                )
        if size.gpu > 1:
            yield (
                f"resources.{role}.gpu: {size.gpu} devices, but a task uses only one; "
                "use more workers with one device each"
            )


def _priority_reasons(priority: int, namespace: str, rules: Rules) -> Iterator[str]:
    """Refuse a higher priority than the cluster's owner allows, in the namespace or everywhere."""
    limit = rules.limits.get(namespace, Limit())
    most = limit.priority
    setting = LIMITS
    if most is None:
        most = rules.max_priority
        setting = MAX_PRIORITY
    if priority > most:
        yield (
            f"priority: {priority} is more than {most}, "
            f"the highest in namespace {namespace!r} ({setting})"
        )


def _limit_reasons(parts: Mapping[str, Any], namespace: str, rules: Rules) -> Iterator[str]:
    """Refuse larger bounds than the cluster's owner allows in the namespace."""
    limit = rules.limits.get(namespace, Limit())
    for name in ("ps", "workers", "batch"):
        span = parts.get(name)
        largest = getattr(limit, name)
        if span is None or largest is None:
            continue
        if span.max > largest:
            yield (
                f"{name}.max: {span.max} is more than {largest}, "
                f"the largest in namespace {namespace!r} ({LIMITS})"
            )


def _policy_reasons(name: str | None) -> Iterator[str]:
    """Yield the reason against an unknown policy. A request cannot add one; the allocator's
    settings have to name it.
    """
    if name is None or name in POLICIES:
        return
    names = ", ".join(sorted(POLICIES))
    reason = f"policy: {name!r} is not known; use one of {names}"
    if ":" in name:
        reason += f"; a custom policy needs WEIR_ALLOCATOR_POLICIES={name}"
    yield reason


def _checkpoint_reasons(rule: CheckpointRule | None, namespace: str) -> Iterator[str]:
    """Yield the reasons against the checkpoint folders. A job may continue only from a folder of
    its own namespace.
    """
    if rule is None:
        return
    if rule.path is not None and not _is_folder(rule.path):
        yield (
            f"checkpoint.path: {rule.path!r} is neither a relative path "
            "below the namespace's checkpoint folder "
            "nor the URL of an object store, such as gs://bucket/folder"
        )
    earlier = rule.continue_from
    if earlier is None:
        return
    if not _is_folder(earlier) or not checkpoints.is_in_namespace(earlier, namespace):
        yield (
            f"checkpoint.continue_from: {earlier!r} is not the folder of a job "
            f"in namespace {namespace!r}, such as {namespace}/{checkpoints.EXAMPLE}"
        )


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
    if re.fullmatch(r"[a-z][a-z0-9+]*", scheme) is None or scheme in LOCAL_SCHEMES:
        return False
    return rest != ""


def _volume_reasons(volumes: tuple[Volume, ...]) -> Iterator[str]:
    """Yield the reasons against volumes: no source or several, a reserved name or path, or a name
    or path that is used twice.
    """
    for i, volume in enumerate(volumes):
        sources = (volume.claim, volume.host_path, volume.secret, volume.config_map)
        if sum([source is not None for source in sources]) != 1:
            yield f"volumes[{i}]: needs one of claim, secret, config_map and host_path"
    for i, volume in enumerate(volumes):
        for why in _mount_reasons(volume):
            yield f"volumes[{i}].{why}"
    yield from _repeated_values("name", [volume.name for volume in volumes])
    yield from _repeated_values("mount_path", [volume.mount_path for volume in volumes])


def _param_reasons(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reason against more or larger parameters of the program than a request may have."""
    size = len(msgspec.json.encode(params))
    if len(params) > MOST_PARAMS:
        yield f"params: {len(params):,} are more than {MOST_PARAMS}"
    elif size > LARGEST_PARAMS:
        yield f"params: {size:,} bytes as JSON are more than {LARGEST_PARAMS:,}"


def _repeated_values(field: str, values: list[str]) -> Iterator[str]:
    """Yield a reason for each value that more than one volume has in this field."""
    numbers = Counter(values)
    for value in sorted(numbers):
        if numbers[value] > 1:
            yield f"volumes: {field} {value!r} occurs twice"


def _mount_reasons(volume: Volume) -> Iterator[str]:
    """Refuse a volume with a reserved name, or with a mount path that cannot be used."""
    if volume.name.startswith("weir-"):
        yield f"name: {volume.name!r}: names that begin with weir- are reserved"
    path = posixpath.normpath(volume.mount_path)
    relative = path.strip("/")
    if relative in ("", "tmp") or ":" in path:
        yield (
            f"mount_path: {volume.mount_path!r} cannot be used; "
            "`/` belongs to the image, /tmp to each pod"
        )


TEXT_FIELDS = ("env[", "labels.", "annotations.", "node_selector.")
"""Fields in which YAML reads a text without quotes as a number or a truth value."""
NAME = "a name: lower-case letters, digits and -, beginning with a letter, not ending with -"
OBJECT_NAME = "the name of an object: lower-case letters, digits, - and ."
(DIGEST,) = (meta.pattern for meta in get_args(Digest)[1:])
PATTERNS = {
    DNS_LABEL: NAME,
    r"^/": "an absolute path",
    PARAM_NAME: "the name of a Python argument",
    DIGEST: "`sha256-` and 64 hexadecimal digits",
    SUBDOMAIN: OBJECT_NAME,
    LABEL_KEY: "the key of a label, such as pool or example.com/pool",
    LABEL_VALUE: "the value of a label: at most 63 letters, digits, -, _ and .",
    ENV_NAME: "the name of a variable: letters, digits and _, not beginning with a digit",
    DATA_KEY: "a key of a Secret or ConfigMap: letters, digits, -, _ and .",
}
TYPE = re.compile(r", got `\w+`$")
LONGEST_FOUND = 60  # characters


def reword_error(kind: Any, error: str, value: object) -> str:
    """Return the decoder's `error` about a field of this kind with this value, in plainer words."""
    if get_origin(kind) is Literal:
        choices = ", ".join(map(repr, get_args(kind)))
        return f"{_with_value(error, value)}; use one of {choices}"
    return _with_value(_expected_fields(kind, error), value)


def _with_value(error: str, value: object) -> str:
    """Return the error with the value that was found in place of its type. An error about a choice
    has the value in it already.
    """
    if error.startswith("Invalid enum value"):
        return error
    return f"{TYPE.sub('', error)}, got {written_value(value)}"


def written_value(value: object) -> str:
    """Return a value as it was written, shortened."""
    text = _Written().repr(value)
    if len(text) <= LONGEST_FOUND:
        return text
    return f"{text[:LONGEST_FOUND]}..."


class _Written(reprlib.Repr):
    """A value as a file or a message contains it. Python writes these two types differently."""

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"


def _expected_fields(kind: Any, error: str) -> str:
    """Return the error with the fields of an object in place of its type, or with a rule in
    words.
    """
    struct = struct_type(kind)
    if struct is not None:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(struct))
        note = " (a job's file may have one number)" if struct is Span else ""
        return error.replace("`object", f"`{{{fields}}}").replace("}`", "}`" + note)
    if "got" in error:
        return error
    for meta in get_args(kind)[1:]:
        rule = _rule_in_words(meta)
        if rule:
            return rule
    return error


def _rule_in_words(meta: Any) -> str:
    """Return the rule of a pattern and of a largest length in words; empty: there are no words for
    it.
    """
    words = PATTERNS.get(getattr(meta, "pattern", None) or "")
    if not words:
        return ""
    longest = getattr(meta, "max_length", None)
    if longest:
        return f"Expected {words}, at most {longest} characters"
    return f"Expected {words}"
