"""All objects of one kind, as far as they count, by the namespace that they are about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

Said = TypeVar("Said")


class Named(msgspec.Struct, Generic[Said], frozen=True):
    """What one object says of a namespace."""

    namespace: str
    name: str
    said: Said


class Collection(Generic[Said]):
    """Every change returns the namespaces that it touches."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Said]] = {}

    def see_all(self, objects: Iterable[Named[Said]]) -> set[str]:
        before = set(self.known)
        self.known = {}
        for each in objects:
            self.see(each)
        return before | set(self.known)

    def see(self, each: Named[Said]) -> set[str]:
        self.known.setdefault(each.namespace, {})[each.name] = each.said
        return {each.namespace}

    def miss(self, each: Named[Said]) -> set[str]:
        left = self.known.get(each.namespace, {})
        left.pop(each.name, None)
        if not left:
            self.known.pop(each.namespace, None)
        return {each.namespace}

    def of(self, namespace: str) -> list[tuple[str, Said]]:
        """Return what is said of a namespace, in the order of the objects' names."""
        return sorted(self.known.get(namespace, {}).items(), key=lambda item: item[0])
