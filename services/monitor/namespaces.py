"""All objects of one kind, as far as they count, by the namespace that they are about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

Value = TypeVar("Value")


class NamespacedObject(msgspec.Struct, Generic[Value], frozen=True):
    """What one object says of a namespace."""

    namespace: str
    name: str
    value: Value


class Collection(Generic[Value]):
    """Every change returns the namespaces that it touches."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Value]] = {}

    def replace_all(self, objects: Iterable[NamespacedObject[Value]]) -> set[str]:
        before = set(self.known)
        self.known = {}
        for each in objects:
            self.update(each)
        return before | set(self.known)

    def update(self, each: NamespacedObject[Value]) -> set[str]:
        self.known.setdefault(each.namespace, {})[each.name] = each.value
        return {each.namespace}

    def remove(self, each: NamespacedObject[Value]) -> set[str]:
        left = self.known.get(each.namespace, {})
        left.pop(each.name, None)
        if not left:
            self.known.pop(each.namespace, None)
        return {each.namespace}

    def in_namespace(self, namespace: str) -> list[tuple[str, Value]]:
        """Return what is said of a namespace, in the order of the objects' names."""
        return sorted(self.known.get(namespace, {}).items(), key=lambda item: item[0])
