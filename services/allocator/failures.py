"""Exceptions inside a decision: find the jobs that cause them, and go on without these.

Law: whatever a policy or a step of `decide` raises, the pass ends with a decision for every job
that does not cause it. A job that does is set aside for this pass: it keeps its tasks, and its
reason names the failure.

The search grows a set of jobs that the computation works with, by halves; it never tries the
computation with no job. With k faulty jobs among n that takes about 2 k log2(n) computations. One
pass makes at most `MOST_TRIES`, for all its policies and steps together. Jobs that it did not reach
are `untried`: they are set aside for `UNTRIED_S`, and the next pass tries them first. A job that
was faulty in the last pass is left out of the search, and at most `RETRIED` of these are tried
again, one by one and in turn. So every pass either clears all jobs that work or finds more faulty
ones, and k jobs that stay faulty cost few computations.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

R = TypeVar("R")
T = TypeVar("T")
MOST_TRIES = 64
"""Computations that one pass makes to find faulty jobs."""
RETRIED = 2
"""Faulty jobs of the last pass that a search tries again."""
UNTRIED_S = 1.0
"""Seconds to the next pass, while there are jobs that the search did not reach."""
SPARED_S = 30.0
"""Seconds to the next pass, while there are faulty jobs that were not tried again."""
LONGEST_ERROR = 200
"""Characters of an error in a job's reason."""
RAISE_ALL = False
"""True: every failure of a decision is raised. Tests and benchmarks set it at their start, so that
a failure ends them; a service uses `Rules.strict`.
"""


def compute_each(
    compute: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]
) -> list[R | None]:
    """Return what `compute` returns for the items: for all together, or for each alone if that
    fails. None for an item that fails alone.
    """
    if not items:
        return []
    try:
        return list(compute(items))
    except Exception:
        if len(items) == 1:
            return [None]
    found: list[R | None] = []
    for item in items:
        found += compute_each(compute, [item])
    return found


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One job that was set aside. `policy`: the one that raised; empty: a step of the pass
    itself.
    """

    job: str
    error: str
    traceback: str = ""
    policy: str = ""

    @property
    def where(self) -> str:
        return describe_computation(self.policy)

    @property
    def reason(self) -> str:
        """The job's reason in this pass."""
        return f"set aside: {self.where} failed for this job: {self.error}"


def describe_computation(policy: str) -> str:
    """Return the computation that raised, as a reason names it."""
    if not policy:
        return "a step of the decision"
    return f"policy {policy!r}"


def untried_reason(policy: str) -> str:
    """Return the reason of a job that was not tried in this pass."""
    return (
        f"set aside for now: {describe_computation(policy)} failed for other jobs "
        "and has not run for this one yet"
    )


def failure_of(job: str, error: Exception, policy: str = "") -> Failure:
    """Return the failure of one job, with a short text and the whole traceback of the error."""
    # Without a cause of its own, the error is not chained to one that was caught before.
    lines = traceback.format_exception(error, chain=error.__cause__ is not None)
    text = _describe_error(error)
    return Failure(job=job, error=text, traceback="".join(lines), policy=policy)


def _describe_error(error: Exception) -> str:
    """Return the type and message of an error for a job's reason, cut off after `LONGEST_ERROR`
    characters.
    """
    text = type(error).__name__
    try:
        message = str(error)
    except Exception as worse:  # the exception's own `__str__` may raise anything
        message = f"its message cannot be shown: {type(worse).__name__}"
    if message:
        text = f"{text}: {message}"
    if len(text) > LONGEST_ERROR:
        return f"{text[:LONGEST_ERROR]}..."
    return text


class FaultSearch:
    """The faulty jobs that one pass knows, and the number of computations that it may still make to
    find more.

    `faulty`: by job, first those that were not tried for longest. `untried`: jobs that the last
    pass did not reach.
    """

    def __init__(self, faulty: Iterable[Failure] = (), untried: Collection[str] = ()) -> None:
        self.faulty = {each.job: each for each in faulty}
        self.untried = frozenset(untried)
        self.tries = MOST_TRIES
        self.blamed: set[str] = set()
        self.retries: Counter[str] = Counter()

    def blame(self, job: str, error: Exception, policy: str) -> None:
        """Remember that a job is faulty, as found in this pass."""
        self.faulty.pop(job, None)
        self.faulty[job] = failure_of(job, error, policy)
        self.blamed.add(job)

    def clear(self, jobs: Iterable[str], policy: str) -> None:
        """Forget that this policy or step ever failed with these jobs, because it works with all of
        them.
        """
        if not self.faulty:
            return
        for job in jobs:
            if job in self.faulty and self.faulty[job].policy == policy:
                del self.faulty[job]

    def suspects(self, items: Iterable[str], policy: str) -> list[str]:
        """Return the items that this policy or step has failed with, in the order of `faulty`."""
        known = frozenset(items)
        suspects = []
        for job, each in self.faulty.items():
            if each.policy == policy and job in known:
                suspects.append(job)
        return suspects

    def next_to_retry(self, suspects: Iterable[str], policy: str) -> list[str]:
        """Return suspects that are to be tried again now. They do not need the tries that the
        others may need.
        """
        if self.tries <= MOST_TRIES // 2:
            return []
        old = [job for job in suspects if job not in self.blamed]
        retried = old[: RETRIED - self.retries[policy]]
        self.retries[policy] += len(retried)
        return retried

    def may_try(self, policy: str) -> bool:
        """Return True if a computation may be tried once more. A step's computation calls policies,
        and these may need tries of their own.
        """
        spared = 0 if policy else MOST_TRIES // 4
        return self.tries > spared

    def wake_s(self, untried: Collection[str], now: float) -> float | None:
        """Return the time (s) at which the search continues; None: it is complete."""
        if untried:
            return now + UNTRIED_S
        if self.faulty.keys() - self.blamed:
            return now + SPARED_S
        return None


class IsolationResult(msgspec.Struct, Generic[R], frozen=True):
    """The result for all items that were found to work (None: there is none), and the items that
    were not tried.
    """

    result: R | None
    untried: tuple[str, ...] = ()


def isolate(
    compute: Callable[[Sequence[str]], R],
    items: Sequence[str],
    error: Exception,
    search: FaultSearch,
    policy: str = "",
) -> IsolationResult[R]:
    """Return the result of `compute` for the items that it works for, in their order; the search
    knows the faulty ones.

    `error`: the exception that it raised for all of them together. `policy`: the one that computes;
    empty: a step.
    """
    adding = _SoundItems(compute, items, error, search, policy)
    suspects = search.suspects(items, policy)
    first = search.untried.difference(suspects)
    last = search.untried.union(suspects)
    adding.add([item for item in items if item in first])
    adding.add([item for item in items if item not in last])
    for item in search.next_to_retry(suspects, policy):
        adding.add([item])
    return IsolationResult(adding.result, tuple(adding.untried))


class _SoundItems(Generic[R]):
    """A growing set of items that the computation works with."""

    def __init__(
        self,
        compute: Callable[[Sequence[str]], R],
        items: Sequence[str],
        error: Exception,
        search: FaultSearch,
        policy: str,
    ) -> None:
        self.compute = compute
        self.items = items
        self.search = search
        self.policy = policy
        self.error_of_all = error
        self.error = error
        self.result: R | None = None
        self.sound: set[str] = set()
        self.untried: list[str] = []

    def add(self, items: Sequence[str]) -> None:
        """Add the items that the computation works with."""
        if not items:
            return
        works = self.works_with(items)
        if works:
            self.search.clear(items, self.policy)
        elif works is None:
            self.untried += items
        elif len(items) == 1:
            self.search.blame(items[0], self.error, self.policy)
        else:
            half = len(items) // 2
            self.add(items[:half])
            self.add(items[half:])

    def works_with(self, items: Sequence[str]) -> bool | None:
        """Return True if the computation works with these items, too, False if it does not; None if
        it may not be tried any more.
        """
        tried = self.sound.union(items)
        if len(tried) == len(self.items):
            self.error = self.error_of_all
            return False
        if not self.search.may_try(self.policy):
            return None
        self.search.tries -= 1
        in_order = [item for item in self.items if item in tried]
        try:
            self.result = self.compute(in_order)
        except Exception as error:
            self.error = error
            return False
        self.sound = tried
        return True
