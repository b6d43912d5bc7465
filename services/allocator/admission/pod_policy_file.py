"""Read the owner's policy for pods from its YAML file, or return every fault of it with its line.

default:                       # for namespaces without a section, and for omitted lists
  images: [weir-trainer]
namespaces:
  team-a:
    secrets: [bucket-key, "team-a-*"]
    node_pools: [{pool: a}]
    largest_task: {cpu: 8, memory_gib: 32, gpu: 1}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec.structs import replace

from services.allocator.admission.validation import field_reasons
from services.allocator.pod_policy import WITHOUT_FILE, PodPolicy
from services.allocator.settings import Rules
from shared import documents
from shared.documents import FileError, InvalidFile
from shared.runtime.config import BadSettings

R = TypeVar("R", bound=Rules)

LONGEST_POLICY = 1 << 20
"""The largest size of the file in characters. A ConfigMap holds no more."""
SECTIONS = ("default", "namespaces")


def with_pod_policy(rules: R, without: PodPolicy = WITHOUT_FILE) -> R:
    """Return the rules with the policy in the file that they name, or `without` if they name none.
    Raises `BadSettings` with every fault of the file.
    """
    if not rules.pod_policy:
        return replace(rules, pod_rules=without)
    try:
        policy = parse_pod_policy(Path(rules.pod_policy).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(
            f"WEIR_ALLOCATOR_POD_POLICY: cannot read {rules.pod_policy}: {error}"
        ) from error
    except InvalidFile as error:
        lines = [f"{rules.pod_policy}, {line}" for line in str(error).splitlines()]
        raise BadSettings("\n".join(["WEIR_ALLOCATOR_POD_POLICY:", *lines])) from error
    return replace(rules, pod_rules=policy)


def parse_pod_policy(text: str) -> PodPolicy:
    """Return the policy. Raises `InvalidFile` with every fault."""
    try:
        root = documents.compose_yaml(text, LONGEST_POLICY)
        raw = documents.load_yaml(text, LONGEST_POLICY)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InvalidFile([FileError(mark.line + 1 if mark else 1, f": {problem}")]) from error
    if root is None:
        return PodPolicy()
    if not isinstance(raw, dict):
        raise InvalidFile([FileError(1, ": the file is a mapping with `default` and `namespaces`")])

    errors = [FileError(line, f": {text}") for line, text in _repeated_keys(root, "")]
    for reason in _reasons_against(raw):
        path, _, why = reason.partition(": ")
        errors.append(FileError(_line_of(root, path), f": {path}: {why}"))
    if errors:
        raise InvalidFile(errors)
    return msgspec.convert(_with_sections(raw), PodPolicy)


def _reasons_against(raw: dict[Any, Any]) -> list[str]:
    """Return the faults of the document, each after the path of its field."""
    reasons = []
    for name in raw:
        if name not in SECTIONS:
            reasons.append(f"{name}: no such section; use {' or '.join(SECTIONS)}")
    known = {name: value for name, value in raw.items() if name in SECTIONS}
    reasons += field_reasons(PodPolicy, _with_sections(known), "")
    reasons += _null_reasons("default", raw.get("default"))
    namespaces = raw.get("namespaces")
    if isinstance(namespaces, dict):
        for name, section in namespaces.items():
            reasons += _null_reasons(f"namespaces.{name}", section)
    return reasons


def _null_reasons(path: str, section: Any) -> list[str]:
    """Return a fault for each list without a value: it could mean no entries, or the default
    entries.
    """
    if not isinstance(section, dict):
        return []
    names = [name for name, value in section.items() if value is None]
    return [f"{path}.{name}: has no value; write [] to allow none" for name in names]


def _with_sections(raw: dict[Any, Any]) -> dict[Any, Any]:
    """Return the document with an empty mapping for each section without a value."""
    result = {name: {} if value is None else value for name, value in raw.items()}
    if isinstance(result.get("namespaces"), dict):
        result["namespaces"] = {
            name: {} if section is None else section
            for name, section in result["namespaces"].items()
        }
    return result


def _repeated_keys(node: yaml.Node, path: str) -> list[tuple[int, str]]:
    """Return the line and the fault of each repeated key of a mapping. YAML would use the last
    value.
    """
    found: list[tuple[int, str]] = []
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            found += _repeated_keys(item, f"{path}[{number}]")
    if not isinstance(node, yaml.MappingNode):
        return found
    seen: set[str] = set()
    for key, value in node.value:
        name = f"{path}.{key.value}".lstrip(".")
        if key.value in seen:
            found.append((key.start_mark.line + 1, f"{name}: occurs twice"))
        seen.add(key.value)
        found += _repeated_keys(value, name)
    return found


def _line_of(root: yaml.Node, path: str) -> int:
    """Return the line of a field, or of the deepest part of its path that exists."""
    node = root
    line = root.start_mark.line + 1
    rest = path
    while rest:
        found = _step_into(node, rest)
        if found is None:
            break
        mark, node, rest = found
        line = mark.line + 1
    return line


def _step_into(node: yaml.Node, path: str) -> tuple[yaml.Mark, yaml.Node, str] | None:
    """Return the position of the first step of a path, the value there, and the rest of the path. A
    key may contain dots.
    """
    if isinstance(node, yaml.SequenceNode) and path.startswith("["):
        number, _, rest = path[1:].partition("]")
        if number.isdecimal() and int(number) < len(node.value):
            item = node.value[int(number)]
            return item.start_mark, item, rest.removeprefix(".")
    if isinstance(node, yaml.MappingNode):
        for key, value in sorted(node.value, key=lambda pair: -len(pair[0].value)):
            rest = path.removeprefix(key.value)
            if key.value and path.startswith(key.value) and rest[:1] in ("", ".", "["):
                return key.start_mark, value, rest.removeprefix(".")
    return None
