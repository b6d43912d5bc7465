"""Answers of pure functions, kept while the very same frozen object is asked about again.

Law: only for functions of one immutable object (and of nothing else); to forget changes nothing but the time it takes.
What is looked at in every pass, a node's picture or a decision, changes seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

MOST = 16_384
FEW = 8
"""Of so many things one may have changed, where the last answer is followed."""
T = TypeVar("T")
R = TypeVar("R")

K = TypeVar("K")


class Kept(Generic[T, R]):
    """The function, with a memory of its newest answers. What is remembered stays alive, so its id is nobody else's."""

    def __init__(self, function: Callable[[T], R], most: int = MOST) -> None:
        self.function, self.most = function, most
        self.known: dict[int, tuple[T, R]] = {}

    def __call__(self, thing: T) -> R:
        known, key = self.known, id(thing)
        found = known.get(key)
        if found is None:
            if len(known) >= self.most:
                self._forget()
            found = known[key] = (thing, self.function(thing))
        return found[1]

    def _forget(self) -> None:
        """The oldest half."""
        for oldest in list(islice(self.known, self.most // 2)):
            del self.known[oldest]


class KeptEach(Generic[T, R]):
    """As `Kept`, for a function that answers about many things at once: it is asked about all that is new, together.

    Things are the same if their `key` is; what is remembered stays alive, so a key may be an id.
    """

    def __init__(
        self, function: Callable[[Sequence[T]], Iterable[R]], key: Callable[[T], Hashable], most: int = MOST
    ) -> None:
        self.function, self.key, self.most = function, key, most
        self.known: dict[Hashable, tuple[T, R]] = {}

    def __call__(self, things: Sequence[T]) -> list[R]:
        keys = [*map(self.key, things)]
        new = {key: thing for key, thing in zip(keys, things, strict=True) if key not in self.known}
        if len(self.known) + len(new) > self.most:
            self.known.clear()
            new = dict(zip(keys, things, strict=True))
        if new:
            answers = self.function([*new.values()])
            self.known.update(zip(new, zip(new.values(), answers, strict=True), strict=True))
        return [self.known[key][1] for key in keys]


def by_ids(pair: Sequence[object]) -> tuple[int, int]:
    """A key by which a pair is the same while its members are."""
    return id(pair[0]), id(pair[1])


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


class KeptNear(Generic[T, R]):
    """As `Kept`, for a function of many named objects of which few change: its last answer is made into the next one,
    by what is gone and what has come; where much has, it is asked anew.
    """

    def __init__(
        self, function: Callable[[Collection[T]], R], follow: Callable[[R, Sequence[T], Sequence[T]], R]
    ) -> None:
        self.function, self.follow = function, follow
        self.known: list[tuple[dict[str, T], R]] = []

    def __call__(self, things: Mapping[str, T]) -> R:
        answer = self._near(*self.known.pop(), things) if self.known else self.function(things.values())
        self.known = [(dict(things), answer)]
        return answer

    def _near(self, before: Mapping[str, T], answer: R, things: Mapping[str, T]) -> R:
        come = [thing for name, thing in things.items() if before.get(name) is not thing]
        gone = [thing for name, thing in before.items() if things.get(name) is not thing]
        if len(come) + len(gone) > len(things) // FEW:
            return self.function(things.values())
        return self.follow(answer, gone, come) if come or gone else answer
