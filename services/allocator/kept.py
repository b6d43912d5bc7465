"""Answers of pure functions, kept while the very same frozen object is asked about again.

Law: only for functions of one immutable object (and of nothing else); to forget changes nothing but the time it takes.
What is looked at in every pass, a node's picture or a decision, changes seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, count
from operator import eq, is_not, ne
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet

MOST = 8_192
FEW = 8
"""Of so many things one may have changed, where the last answer is followed."""
T = TypeVar("T")
R = TypeVar("R")

K = TypeVar("K", bound=Hashable)
Together = Callable[[Sequence[T]], Iterable[R]]
"""A function that answers about many things at once, one answer a thing."""


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


class Last(NamedTuple, Generic[K, T, R]):
    """What was asked last, and what was answered."""

    keys: list[K]
    things: list[T]
    answers: list[R]


class Answers(Memory[K, tuple[T, R]]):
    """Of things by their keys; and all that was asked about last. What is remembered stays alive, so a key may be an
    id: it is nobody else's.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._last = Last[K, T, R]([], [], [])

    def fade(self) -> None:
        super().fade()
        keys, things, answers = self._last  # was asked for, too
        self.fading.update(zip(keys, zip(things, answers, strict=True), strict=True))
        self._last = Last([], [], [])

    def all_of(self, keys: list[K], things: Collection[T], function: Together[T, R]) -> list[R]:
        """One a thing; the function is asked about all that is new, together, and once where keys are the same.

        Nearly always these are the things of the last time, but for a few: then only those are looked for.
        """
        last, listed = self._last, [*things]
        new = [*compress(count(), map(ne, keys, last.keys))] if len(keys) == len(last.keys) else None
        if new is None or len(new) > len(keys) // FEW:
            answers = self._looked_for(keys, listed, function)
        else:
            answers = [*last.answers]
            few = self._looked_for([keys[n] for n in new], [listed[n] for n in new], function)
            for n, answer in zip(new, few, strict=True):
                answers[n] = answer
        self._last = Last(keys, listed, answers)
        return [*answers]

    def _looked_for(self, keys: Sequence[K], things: Sequence[T], function: Together[T, R]) -> list[R]:
        known = [*map(self.known.get, keys)]
        if all(known):
            return [found[1] for found in known if found]
        lacking = {key: thing for key, thing, found in zip(keys, things, known, strict=True) if found is None}
        told = self._told(lacking, function)
        if len(self.known) + len(told) > self.most:
            self.fade()
            self.known.update((key, found) for key, found in zip(keys, known, strict=True) if found)
        self.known |= told
        return [(found or told[key])[1] for key, found in zip(keys, known, strict=True)]

    def _told(self, lacking: Mapping[K, T], function: Together[T, R]) -> dict[K, tuple[T, R]]:
        told = {key: self.fading.pop(key) for key in self.fading.keys() & lacking.keys()}
        new = {key: thing for key, thing in lacking.items() if key not in told} if told else lacking
        if new:
            told.update(zip(new, zip(new.values(), function([*new.values()]), strict=True), strict=True))
        return told


class Kept(Answers[int, T, R]):
    """The function, with a memory of its newest answers."""

    def __init__(self, function: Callable[[T], R], most: int = MOST) -> None:
        super().__init__(most)
        self.function = function
        self._each = partial(map, function)

    def __call__(self, thing: T) -> R:
        key = id(thing)
        found = self.known.get(key)
        if found is None:
            faded = self.fading.pop(key, None)
            found = self._learn(key, faded or (thing, self.function(thing)))
        return found[1]

    def each(self, things: Collection[T]) -> list[R]:
        """As one call for each; quicker."""
        return self.all_of([*map(id, things)], things, self._each)


class KeptEach(Answers[Hashable, T, R]):
    """As `Kept`, for a function that answers about many things at once. Things are the same if their `key` is."""

    def __init__(self, function: Together[T, R], key: Callable[[T], Hashable], most: int = MOST) -> None:
        super().__init__(most)
        self.function, self.key = function, key

    def __call__(self, things: Sequence[T]) -> list[R]:
        return self.all_of([*map(self.key, things)], things, self.function)


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
