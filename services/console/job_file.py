"""A job's YAML file as the body of a request.

The file has the fields of `JobRequested`, with short forms: `ps: 2` stands for `{start: 2, min: 2,
max: 2}` (also of `workers` and `batch`), `shuffle: off` for `{on: false}`, `program` is a path
relative to the file, `env` may be a mapping of names to values, and `image_pull_secrets` a list of
names. The allocator's own check finds wrong, unknown and missing fields that every cluster would
refuse; the cluster's allocator checks the rest. A file that cannot be read raises `Trouble` with
the cause and the remedy.

The example jobs are in `deploy/jobs` of a checkout, or in a folder beside this module in an
installed package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from services.allocator.admission.validation import InvalidRequest, check_request, written_value
from services.allocator.pod_policy import ALLOW_ALL
from services.allocator.settings import Rules
from services.console.trouble import WRONG_USE, Trouble
from shared import documents
from shared.bus.subjects import DEFAULT_NAMESPACE, is_name, pattern
from shared.messages import JobRequested

Fields = dict[str, Any]


def read_text(file: Path, hint: str) -> str:
    """Return the text of a file. `hint`: the remedy if it cannot be read."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise Trouble(f"cannot read {file}: {error.strerror}; {hint}", WRONG_USE) from error
    except UnicodeDecodeError as error:
        raise Trouble(
            f"{file} is not text in UTF-8: {error.reason}; save it as UTF-8", WRONG_USE
        ) from error


IN_CHECKOUT = Path("deploy/jobs")
CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGED = Path(__file__).with_name("example_jobs")
"""The place of `deploy/jobs` in a wheel, see pyproject.toml."""


def examples_folder() -> Path:
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT / IN_CHECKOUT


def example_path(name: str) -> str:
    """Return the path of an example for a command line: relative in a checkout, absolute in an
    installed package.
    """
    folder = PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT
    return str(folder / name)


SPANS = ("batch", "ps", "workers")
FIELDS_HINT = f"{example_path('digits.yaml')} explains every field"
EXAMPLE_HINT = f"{example_path('digits.yaml')} is an example"
LONGEST_TEXT = 256 << 10  # characters; every valid request is shorter
INVALID_NAME = "-"  # replaces an invalid name in a subject; no job can have this name


def parse_fields(text: str, name: str) -> Fields:
    """Return the fields as written. Raise `Trouble` if the text is not a YAML mapping or repeats a
    field.
    """
    try:
        fields = documents.load_yaml(text, LONGEST_TEXT)
        root = documents.compose_yaml(text, LONGEST_TEXT)
    except yaml.YAMLError as error:
        raise Trouble(
            f"{name} is not YAML: {_error_place(error)}; {FIELDS_HINT}", WRONG_USE
        ) from error
    if not isinstance(fields, dict):
        raise Trouble(
            f"{name} is not a job request: it has no fields such as `job:` and `program:`;"
            f" {FIELDS_HINT}",
            WRONG_USE,
        )
    duplicates = list(_duplicate_fields(root, "", set()))
    if duplicates:
        raise Trouble("\n".join([f"{name} has a field twice:", *duplicates]), WRONG_USE)
    return fields


def _duplicate_fields(node: Any, path: str, seen: set[int]) -> Iterator[str]:
    """Yield a line for each repeated field, of which YAML would use the last value. `seen`: the ids
    of the visited nodes, because a node may contain itself.
    """
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _duplicate_fields(item, f"{path}[{number}]", seen)
        return
    fields: set[str] = set()
    for key, value in node.value:
        field = f"{path}.{key.value}".lstrip(".")
        if field in fields:
            yield f"  - {field}: again on line {key.start_mark.line + 1}"
        fields.add(field)
        yield from _duplicate_fields(value, field, seen)


def _error_place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = getattr(error, "problem", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def complete_fields(fields: Fields, program: Fields | None, request_id: str) -> Fields:
    """Return the fields of the request: short forms in full, the program by its digest."""
    complete = dict(fields)
    if isinstance(fields.get("env"), dict):
        complete["env"] = [_variable(name, value) for name, value in fields["env"].items()]
    if isinstance(fields.get("image_pull_secrets"), list):
        refs = fields["image_pull_secrets"]
        complete["image_pull_secrets"] = [
            {"name": ref} if isinstance(ref, str) else ref for ref in refs
        ]
    for name in SPANS:
        if name in fields:
            complete[name] = _span(fields[name])
    if isinstance(fields.get("shuffle"), bool):
        complete["shuffle"] = {"on": fields["shuffle"]}
    if fields.get("max_staleness") is False:  # how YAML reads `off`
        complete["max_staleness"] = "off"
    if program is not None:
        complete["program"] = program
    complete["request_id"] = request_id
    return complete


def _variable(name: str, value: Any) -> Fields:
    """Return a variable of a mapping; its value is a text, or a mapping with a reference to a
    value.
    """
    if isinstance(value, dict):
        return {"name": name, "value_from": value}
    return {"name": name, "value": value}


def _span(value: Any) -> Any:
    plain_number = isinstance(value, int) and not isinstance(value, bool)
    return {"start": value, "min": value, "max": value} if plain_number else value


def with_params(fields: Fields, given: Iterable[tuple[str, Any]]) -> Fields:
    """Return the fields with these parameters instead of those of the same names."""
    params = dict(given)
    if not params:
        return fields
    written = fields.get("params") or {}
    return {**fields, "params": {**written, **params} if isinstance(written, dict) else written}


def unsendable_params(params: Any) -> Iterator[str]:
    """Yield an error for each value that JSON cannot represent or would change."""
    if isinstance(params, dict):
        for name, value in params.items():
            yield from _unsendable_values(value, f"params.{name}")


def _unsendable_values(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                yield f"{path}: the name {name!r} is not a string; write it in quotes"
            yield from _unsendable_values(each, f"{path}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _unsendable_values(each, f"{path}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path}: {value} cannot be sent as a number; write it as a string, in quotes"
    elif not isinstance(value, str | int | float | None):
        yield f"{path}: `{value}` is read as a {type(value).__name__}; write it in quotes"


LENIENT_RULES = Rules(host_paths=("/",), images=(), pod_rules=ALLOW_ALL)
"""The rules of a cluster that allows as much as any cluster can."""
PATH_EXPECTED = "program: is a path, relative to this file, not "


def reasons_against(fields: Fields) -> list[str]:
    """Return the errors for which every cluster refuses a completed request, each with the path of
    its field. A custom policy (`module:function`) is not an error: a cluster may know it.
    """
    policy = fields.get("policy")
    checked_fields = fields
    if isinstance(policy, str) and ":" in policy:
        checked_fields = fields | {"policy": None}
    reasons = list(unsendable_params(fields.get("params")))
    checked = check_request(encode_fields(checked_fields, "the request"), LENIENT_RULES)
    if not isinstance(checked, InvalidRequest):
        return reasons
    no_program = "program" in fields and not isinstance(fields["program"], dict)
    for reason in _without_repetition(checked.reasons, fields):
        if no_program and reason.startswith("program: "):
            reason = PATH_EXPECTED + written_value(fields["program"])
        reasons.append(reason)
    return reasons


def _without_repetition(reasons: Iterable[str], fields: Fields) -> list[str]:
    """Report an error in a plain number once, although the number is sent as a span of three."""
    plain_spans = tuple(f"{name}." for name in SPANS if _is_plain_span(fields.get(name)))
    different = dict[str, None]()
    for reason in reasons:
        field, _, problem = reason.partition(": ")
        if field.startswith(plain_spans):
            reason = f"{field.partition('.')[0]}: {problem}"
        different[reason] = None
    return list(different)


def _is_plain_span(span: Any) -> bool:
    return isinstance(span, dict) and span == _span(span.get("start"))


def encode_fields(fields: Fields, name: str) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Trouble(f"{name} cannot be written as JSON: {error}", WRONG_USE) from error


def subject_key(fields: Fields) -> str:
    """Return the last tokens of the request's subject. A request with an invalid name is sent too,
    so that it is answered with the reason.
    """
    namespace, job = fields.get("namespace", DEFAULT_NAMESPACE), fields.get("job")
    if not is_name(namespace):
        namespace = INVALID_NAME
    if not is_name(job):
        job = INVALID_NAME
    return f"{namespace}.{job}"


def subject_of(fields: Fields) -> str:
    return pattern(JobRequested, subject_key(fields))
