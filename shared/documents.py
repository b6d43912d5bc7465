"""Read YAML from outside with a limit on its size, which is checked before anything is expanded.

An alias repeats a part of the document, and aliases of aliases multiply: 400 bytes can stand for
more values than any memory holds. So the size is computed on the parsed tree, where an alias costs
nothing, and only then are the values built.

Numbers such as `1e-3` are numbers, as in YAML 1.2 and JSON; PyYAML reads 1.1, where they are texts.

`InvalidFile` names the errors in a file that a person wrote, by line: scenarios, CSV files and
exported logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import yaml

LONGEST = 4 << 20
"""The most characters of a text."""
MOST_EXPANDED = 4
"""With its aliases expanded, a text may have this many times as many characters and values."""


class _Loader(yaml.SafeLoader):
    """PyYAML's loader of plain values, with all numbers of JSON."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)


class TooLarge(yaml.YAMLError):
    """The document is larger than its reader allows."""


def load_yaml(text: str, longest: int = LONGEST) -> Any:
    """Return the only document of a text, as plain values. Raises `yaml.YAMLError`, also if it is
    too large.
    """
    return _construct([compose_yaml(text, longest)])[0]


def load_yaml_documents(text: str, longest: int = LONGEST) -> list[Any]:
    """Return every document of a text, as plain values; raises as `load_yaml`."""
    return _construct(list(_compose_all(text, longest)))


def compose_yaml(text: str, longest: int = LONGEST) -> yaml.Node | None:
    """Return the tree of the only document of a text, with its aliases; raises as `load_yaml`."""
    documents = list(_compose_all(text, longest))
    if len(documents) > 1:
        raise yaml.YAMLError("it has several documents, and one is needed")
    return documents[0] if documents else None


def _compose_all(text: str, longest: int) -> Iterator[yaml.Node]:
    if len(text) > longest:
        raise TooLarge(f"it has {len(text):,} characters, more than {longest:,}")
    try:
        for document in yaml.compose_all(text, _Loader):
            if expanded_size(document) > MOST_EXPANDED * longest:
                raise TooLarge(
                    f"with its aliases expanded it is larger than {MOST_EXPANDED * longest:,}"
                    " characters"
                )
            yield document
    except RecursionError as error:
        raise TooLarge("it is nested too deeply") from error


def expanded_size(root: yaml.Node) -> int:
    """Return the number of values and characters of a tree with its aliases expanded.

    Raises `TooLarge` for a tree that contains itself.
    """
    return _size(root, {})


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Return the size of a node. `known`: sizes by node id; None while a size is being computed."""
    if id(node) in known:
        size = known[id(node)]
        if size is None:
            raise TooLarge("a part of it contains itself")
        return size
    known[id(node)] = None
    total = 1
    if isinstance(node, yaml.ScalarNode):
        total += len(node.value)
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_size(item, known) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        total += sum(_size(key, known) + _size(value, known) for key, value in node.value)
    known[id(node)] = total
    return total


def _construct(documents: list[yaml.Node | None]) -> list[Any]:
    """Build the values of trees whose size was checked."""
    loader = _Loader("")
    try:
        return [
            None if document is None else loader.construct_document(document)
            for document in documents
        ]
    except (
        RecursionError,
        ValueError,
    ) as error:  # for example, an integer with more digits than Python reads
        raise yaml.YAMLError(str(error)) from error
    finally:
        loader.dispose()


class FileError(msgspec.Struct, frozen=True, order=True):
    """An error in a file: the line, and the fault there."""

    line: int
    said: str


class InvalidFile(ValueError):
    """A file that cannot be used; its text has a line for each error."""

    def __init__(self, reasons: Iterable[FileError]) -> None:
        self.reasons = tuple(sorted(reasons))
        texts = [f"line {reason.line}{reason.said}" for reason in self.reasons]
        super().__init__("\n".join(texts))
