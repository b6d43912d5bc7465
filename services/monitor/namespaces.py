"""Objects by namespace, and the facts that were published about each namespace."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from shared.messages import ClaimsChanged, QuotaChanged

Value = TypeVar("Value")
F = TypeVar("F", bound=QuotaChanged | ClaimsChanged)


class NamespacedObject(msgspec.Struct, Generic[Value], frozen=True):
    """The value of one object of a namespace."""

    namespace: str
    name: str
    value: Value


class Collection(Generic[Value]):
    """All objects of one kind. Every change returns the namespaces that it affects."""

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
        """Return names and values of the objects of a namespace, ordered by name."""
        return sorted(self.known.get(namespace, {}).items(), key=lambda item: item[0])


class NamespacePicture(Generic[F]):
    """The objects that exist, and the fact that was last published about each namespace.

    `revision`: the API's, of the newest event. It is part of a fact's digest, so that a namespace
    that returns to an old state has a new fact.
    """

    def __init__(self, published: Iterable[F] = ()) -> None:
        self.restart_from(published)
        self.revision = ""

    def restart_from(self, published: Iterable[F]) -> None:
        """Replace the published facts."""
        self.published = {fact.namespace: fact for fact in published}

    def take_changes(self, namespaces: Iterable[str], now: float) -> list[F]:
        """Return the new facts about these namespaces; they count as published."""
        changes = []
        for namespace in sorted(namespaces):
            fact = self.current_fact(namespace)
            if self.differs(self.published.get(namespace), fact):
                body = self.revision.encode() + msgspec.json.encode(fact)
                digest = hashlib.sha256(body).hexdigest()[:16]
                changes.append(msgspec.structs.replace(fact, seen=digest, observed_s=now))
        for fact in changes:
            self.published[fact.namespace] = fact
        return changes

    @abstractmethod
    def current_fact(self, namespace: str) -> F:
        """Return the fact about a namespace as it is now, without digest and time."""

    @abstractmethod
    def differs(self, last: F | None, fact: F) -> bool:
        """Return True if a fact has other content than the last one; None: nothing to tell."""
