"""Answers of pure functions, kept while the very same frozen object is asked about again.

Law: only for functions of one immutable object (and of nothing else); to forget changes nothing but the time it takes.
What is looked at in every pass, a node's picture or a decision, changes seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from operator import eq, is_not
from typing import Any, Generic, TypeVar
from weakref import WeakSet

MOST = 8_192
FEW = 8
"""Of so many things one may have changed, where the last answer is followed."""
T = TypeVar("T")
R = TypeVar("R")

K = TypeVar("K", bound=Hashable)


class Memory(Generic[K, R]):
    """What was asked for since the memory last faded, and what was before that, which fades next. Each is of `most`
    entries at most, or of all that one question is about.
    """

    all: WeakSet[Memory[Any, Any]] = WeakSet()

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[K, R] = {}
        self.fading: dict[K, R] = {}
        Memory.all.add(self)

    def fade(self) -> None:
        self.fading, self.known = self.known, {}

    def _again(self, key: K) -> R | None:
        """What was fading, known again."""
        found = self.fading.pop(key, None)
        return None if found is None else self._learn(key, found)

    def _learn(self, key: K, found: R) -> R:
        if len(self.known) >= self.most:
            self.fade()
        self.known[key] = found
        return found


def fade() -> None:
    """Forget all that was not asked for since this was last called."""
    for memory in list(Memory.all):
        memory.fade()


class Kept(Memory[int, tuple[T, R]]):
    """The function, with a memory of its newest answers. What is remembered stays alive, so its id is nobody else's."""

    def __init__(self, function: Callable[[T], R], most: int = MOST) -> None:
        super().__init__(most)
        self.function = function

    def __call__(self, thing: T) -> R:
        key = id(thing)
        found = self.known.get(key)
        if found is None:
            faded = self.fading.pop(key, None)
            found = self._learn(key, faded or (thing, self.function(thing)))
        return found[1]

    def each(self, things: Collection[T]) -> list[R]:
        """As one call for each; quicker, where all are known."""
        found = [*map(self.known.get, map(id, things))]
        if all(found):
            return [known[1] for known in found if known]
        return [known[1] if known else self(thing) for known, thing in zip(found, things, strict=True)]


class KeptEach(Memory[Hashable, tuple[T, R]]):
    """As `Kept`, for a function that answers about many things at once: it is asked about all that is new, together.

    Things are the same if their `key` is; what is remembered stays alive, so a key may be an id.
    """

    def __init__(
        self, function: Callable[[Sequence[T]], Iterable[R]], key: Callable[[T], Hashable], most: int = MOST
    ) -> None:
        super().__init__(most)
        self.function, self.key = function, key

    def __call__(self, things: Sequence[T]) -> list[R]:
        keys = [*map(self.key, things)]
        found = [*map(self.known.get, keys)]
        if all(found):
            return [known[1] for known in found if known]
        # To hash a key may cost more than all else: each is looked for once, and is a number from then on.
        places: dict[Hashable, int] = {}
        at = [places.setdefault(key, len(places)) for key in keys]
        told = dict(zip(at, zip(things, found, strict=True), strict=True))
        answers = self._answered([(key, *told[n]) for key, n in places.items()])
        return [answers[n] for n in at]

    def _answered(self, asked: Sequence[tuple[Hashable, T, tuple[T, R] | None]]) -> list[R]:
        """Of keys, things and what is known of them."""
        known = {key: found or self.fading.pop(key, None) for key, _, found in asked}
        new = {key: thing for key, thing, _ in asked if known[key] is None}
        if new:
            answers = self.function([*new.values()])
            known.update(zip(new, zip(new.values(), answers, strict=True), strict=True))
        if len(self.known) + len(new) > self.most:
            self.fade()
        self.known |= {key: found for key, found in known.items() if found}
        return [found[1] for found in known.values() if found]


def by_ids(pair: Sequence[object]) -> tuple[int, int]:
    """A key by which a pair is the same while its members are."""
    return id(pair[0]), id(pair[1])


class KeptTogether(Memory[K, tuple[list[int], list[T], R]]):
    """As `Kept`, for a function of several such objects: per key, the last objects and what they gave."""

    def __init__(self, function: Callable[[Sequence[T]], R], most: int = MOST) -> None:
        super().__init__(most)
        self.function = function

    def __call__(self, key: K, things: Sequence[T]) -> R:
        ids = [*map(id, things)]
        found = self.known.get(key) or self._again(key)
        if found is None or found[0] != ids:
            found = self._learn(key, (ids, [*things], self.function(things)))
        return found[2]


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
        # Names are nearly always the same, in the same order: then only what changed has to be looked up.
        if len(before) == len(things) and all(map(eq, before, things)):
            names = [*compress(things, map(is_not, things.values(), before.values()))]
            new, gone = {name: things[name] for name in names}, {*names}
        else:
            new = {name: thing for name, thing in things.items() if before.get(name) is not thing}
            gone = (before.keys() - things.keys()) | (before.keys() & new.keys())
        if len(new) + len(gone) > len(things) // FEW:
            return self.function(things.values())
        old = [before[name] for name in gone]
        return self.follow(answer, old, [*new.values()]) if new or old else answer
