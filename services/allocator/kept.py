"""Answers of pure functions, kept while the very same frozen object is asked about again.

Law: only for functions of one immutable object (and of nothing else); to forget changes nothing but the time it takes.
What is looked at in every pass, a node's picture or a decision, changes seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

MOST = 16_384
T = TypeVar("T")
R = TypeVar("R")

K = TypeVar("K")


class Kept(Generic[T, R]):
    """The function, with a memory of its newest answers. What is remembered stays alive, so its id is nobody else's."""

    def __init__(self, function: Callable[[T], R], most: int = MOST) -> None:
        self.function, self.most = function, most
        self.known: dict[int, tuple[T, R]] = {}

    def __call__(self, thing: T) -> R:
        found = self.known.get(id(thing))
        return found[1] if found is not None else self._learn(thing)

    def _learn(self, thing: T) -> R:
        if len(self.known) >= self.most:
            for oldest in list(islice(self.known, self.most // 2)):
                del self.known[oldest]
        answer = self.function(thing)
        self.known[id(thing)] = (thing, answer)
        return answer


class KeptTogether(Generic[K, T, R]):
    """As `Kept`, for a function of several such objects: per key, the last objects and what they gave."""

    def __init__(self, function: Callable[[Sequence[T]], R], most: int = MOST) -> None:
        self.function, self.most = function, most
        self.known: dict[K, tuple[list[int], list[T], R]] = {}

    def __call__(self, key: K, things: Sequence[T]) -> R:
        ids = [*map(id, things)]
        found = self.known.get(key)
        if found is not None and found[0] == ids:
            return found[2]
        if len(self.known) >= self.most:
            self.known.clear()
        answer = self.function(things)
        self.known[key] = (ids, [*things], answer)
        return answer
