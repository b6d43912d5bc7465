"""Exceptions inside a decision: find the jobs that cause them, and go on without these.

Law: whatever a policy or a step of `decide` raises, the pass ends with a decision for every job that does not cause it.
A job that does is set aside for this pass: it keeps what it has, and its reason says why.

The search adds jobs to a set for which the computation works, by halves: k faulty jobs among n take about 2 k log2(n)
computations, and never more than `MOST_TRIES`; a job that is not tried any more is set aside, too. A job that was
faulty in the last pass is tried last, so that one that stays faulty costs two more computations a pass.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

import msgspec

R = TypeVar("R")
MOST_TRIES = 64
"""Computations of one search."""
LONGEST_ERROR = 200
"""Characters of an error in a job's reason."""
RAISE_ALL = False
"""Every failure is raised. Set by tests and benchmarks, which fail by it; a service has `Rules.strict`."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One job that was set aside. `policy`: whose computation raised; empty: a step of the pass itself."""

    job: str
    error: str
    traceback: str = ""
    policy: str = ""

    @property
    def where(self) -> str:
        return f"policy {self.policy!r}" if self.policy else "a step of the decision"

    @property
    def reason(self) -> str:
        """The job's reason in this pass."""
        return f"set aside: {self.where} failed with it: {self.error}"


def failure(job: str, error: Exception, policy: str = "") -> Failure:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    short = text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}..."
    lines = traceback.format_exception(error, chain=error.__cause__ is not None)  # not what was caught before
    return Failure(job=job, error=short, traceback="".join(lines), policy=policy)


class Isolated(msgspec.Struct, Generic[R], frozen=True):
    """The result for all items but the faulty ones (None: there is none even for no items), and these with errors."""

    result: R | None
    faulty: dict[str, Exception] = {}


def isolate(
    compute: Callable[[Sequence[str]], R], items: Sequence[str], error: Exception, suspects: Collection[str] = ()
) -> Isolated[R]:
    """Return what `compute` gives for the items that it works for, in their order.

    `error`: what it raised for all of them together. `suspects`: items that were faulty before.
    """
    search = _Search(compute, items, error)
    if search.fails([]):
        return Isolated(None, dict.fromkeys(items, error))
    suspected = [item for item in items if item in suspects]
    search.add([item for item in items if item not in suspects])
    search.add(suspected)
    return Isolated(search.result, search.faulty)


class _Search(Generic[R]):
    def __init__(self, compute: Callable[[Sequence[str]], R], items: Sequence[str], error: Exception) -> None:
        self.compute, self.items, self.error = compute, items, error
        self.result: R | None = None
        self.sound: set[str] = set()
        self.faulty: dict[str, Exception] = {}
        self.tries = MOST_TRIES

    def add(self, items: Sequence[str]) -> None:
        """Add those of them that the computation works with."""
        if not items or not self.fails(items):
            return
        if len(items) == 1:
            self.faulty[items[0]] = self.error
            return
        half = len(items) // 2
        self.add(items[:half])
        self.add(items[half:])

    def fails(self, items: Sequence[str]) -> bool:
        if not self.tries:
            return True
        self.tries -= 1
        tried = self.sound.union(items)
        try:
            self.result = self.compute([item for item in self.items if item in tried])
        except Exception as error:
            self.error = error
            return True
        self.sound = tried
        return False
