"""A job's YAML file as the body of a request: pure.

The file has the fields of `JobRequested`, with two short forms: `ps: 2` stands for `{start: 2, min:
2, max: 2}` (so do `workers` and `batch`), and `program` is a path beside the file. The allocator's
own check finds wrong, unknown and missing fields, as far as it holds in every cluster; the rest is
checked by the cluster's allocator.

A file that cannot be read raises `Trouble` with the cause and the remedy. Edge.

The folder of the example jobs: `deploy/jobs` of a checkout; in an installed package a folder
beside this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from services.allocator.admission.validation import InvalidRequest, check_request, written_value
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
"""pyproject.toml puts `deploy/jobs` there in a wheel."""


def examples_folder() -> Path:
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT / IN_CHECKOUT


def example_path(name: str) -> str:
    """Return the path of an example as a person types it: relative to a checkout, or absolute in a
    package.
    """
    return str((PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT) / name)


SPANS = ("batch", "ps", "workers")
FIELDS_HINT = f"{example_path('digits.yaml')} explains every field"
EXAMPLE_HINT = f"{example_path('digits.yaml')} is one to begin with"
LONGEST_TEXT = 256 << 10  # characters: more than any request has
NO_NAME = "-"  # stands in a subject for a name that cannot; no job can be called so


def parse_fields(text: str, name: str) -> Fields:
    """Return the fields as written. Raises `Trouble` if the text is no YAML mapping, or has a field
    twice.
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
            f"{name} is not a job request: it has no fields such as `job:` and `program:`; {FIELDS_HINT}",
            WRONG_USE,
        )
    if twice := list(_duplicate_fields(root, "", set())):
        raise Trouble("\n".join([f"{name} says what cannot both be so:", *twice]), WRONG_USE)
    return fields


def _duplicate_fields(node: Any, path: str, seen: set[int]) -> Iterator[str]:
    """YAML itself lets the last one of a field's values stand. `seen`: a node may be in itself."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _duplicate_fields(item, f"{path}[{number}]", seen)
        return
    there: set[str] = set()
    for key, value in node.value:
        field = f"{path}.{key.value}".lstrip(".")
        if field in there:
            yield f"  - {field}: is there twice, again in line {key.start_mark.line + 1}"
        there.add(field)
        yield from _duplicate_fields(value, field, seen)


def _error_place(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def complete_fields(fields: Fields, program: Fields | None, request_id: str) -> Fields:
    """Return the fields of the request: plain numbers as spans, the program by its digest."""
    spans = {name: _span(fields[name]) for name in SPANS if name in fields}
    uploaded = {} if program is None else {"program": program}
    return fields | spans | uploaded | {"request_id": request_id}


def _span(value: Any) -> Any:
    plain_number = isinstance(value, int) and not isinstance(value, bool)
    return {"start": value, "min": value, "max": value} if plain_number else value


LENIENT_RULES = Rules(host_paths=("/",), images=())
"""Of a cluster that allows all that one may."""
PATH_EXPECTED = "program: is a path, relative to this file, not "


def reasons_against(fields: Fields) -> list[str]:
    """Return the reasons for which every cluster refuses a completed request, each with the path of
    its field. A policy of one's own (`module:function`) may be known there.
    """
    policy = fields.get("policy")
    own = isinstance(policy, str) and ":" in policy
    checked = check_request(
        encode_fields(fields | {"policy": None} if own else fields, "the request"), LENIENT_RULES
    )
    pathless = "program" in fields and not isinstance(fields["program"], dict)
    told = checked.reasons if isinstance(checked, InvalidRequest) else ()
    path = PATH_EXPECTED + written_value(fields.get("program"))
    return [
        path if pathless and reason.startswith("program: ") else reason
        for reason in _without_repetition(told, fields)
    ]


def _without_repetition(reasons: Iterable[str], fields: Fields) -> list[str]:
    """Report a wrong plain number once, though it is sent as a span of three."""
    typed_once = tuple(f"{name}." for name in SPANS if _is_plain_span(fields.get(name)))
    parted = [(reason, *reason.partition(": ")) for reason in reasons]
    short = (
        f"{f.partition('.')[0]}: {why}" if f.startswith(typed_once) else whole
        for whole, f, _, why in parted
    )
    return list(dict.fromkeys(short))


def _is_plain_span(span: Any) -> bool:
    return isinstance(span, dict) and span == _span(span.get("start"))


def encode_fields(fields: Fields, name: str) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Trouble(f"{name} holds what JSON cannot say: {error}", WRONG_USE) from error


def subject_key(fields: Fields) -> str:
    """The last tokens of the subject. A name that cannot stand there is answered too, with its
    reason.
    """
    job, namespace = fields.get("job"), fields.get("namespace", DEFAULT_NAMESPACE)
    return f"{namespace if is_name(namespace) else NO_NAME}.{job if is_name(job) else NO_NAME}"


def subject_of(fields: Fields) -> str:
    return pattern(JobRequested, subject_key(fields))
