"""What would have to be otherwise for a job to get more, in words: pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from services.allocator.placement.shortage import describe_resources as amount
from services.whatif.explain.counterfactual import (
    Adds,
    AnyChange,
    Change,
    Frees,
    Opens,
    Raises,
    Reports,
    Settles,
    Trains,
    Waits,
    Widens,
)
from services.whatif.explain.explanation import Explanation
from shared.messages import Resources, Span

When = Callable[[float], str]
"""A point in time, in words."""
BY_ITSELF = (Waits, Settles, Trains, Reports)


def otherwise(changes: Sequence[AnyChange], e: Explanation, when: When) -> str:
    """First what comes by itself, then what somebody would have to do."""
    if changes == (Waits(until_s=e.at_s),):
        return "nothing more, it is being decided"
    once, by_hand = (
        " and ".join(
            TOLD[type(change)](change, e, when)
            for change in changes
            if isinstance(change, BY_ITSELF) == so
        )
        for so in (True, False)
    )
    if not once:
        return by_hand
    return f"once {once}, {by_hand}" if by_hand else f"only time, until {once}"


def _waits(change: Waits, e: Explanation, when: When) -> str:
    return f"it is {when(change.until_s)}"


def _settles(change: Settles, e: Explanation, when: When) -> str:
    names = ", ".join(name.replace(".", "/") for name in change.jobs)
    return f"what is wanted{f' of {names}' if names else ''} has come true"


def _trains(change: Trains, e: Explanation, when: When) -> str:
    whose = "" if change.job == f"{e.namespace}.{e.job}" else f" of {change.job.replace('.', '/')}"
    return f"generation {change.generation}{whose} trains"


def _reports(change: Reports, e: Explanation, when: When) -> str:
    taken = f"taken to be {change.samples_per_second:,.0f} examples/s"
    return f"it has said how fast it is ({taken}, by the model of what its program's and other jobs showed)"


def _frees(change: Frees, e: Explanation, when: When) -> str:
    return f"{_amount(change.more)} more free on {change.node}"


def _adds(change: Adds, e: Explanation, when: When) -> str:
    what = "one more node" if change.nodes == 1 else f"{change.nodes} more nodes"
    return f"{what} {f'like {change.like}' if change.like else 'of a new shape'} ({amount(change.shape)})"


def _opens(change: Opens, e: Explanation, when: When) -> str:
    return f"{change.node} taking tasks again"


def _raises(change: Raises, e: Explanation, when: When) -> str:
    return f"priority {change.priority} in place of {e.priority}"


def _widens(change: Widens, e: Explanation, when: When) -> str:
    then = e.bounds
    pairs = {
        "ps": (change.ps, then.ps),
        "workers": (change.workers, then.workers),
        "batch": (change.batch, then.batch),
    }
    told = [
        f"{name} {_span(new)} ({_span(old)} now)"
        for name, (new, old) in pairs.items()
        if new != old
    ]
    return f"asked for with {', '.join(told)}"


TOLD: dict[type[Change], Callable[[Any, Explanation, When], str]] = {
    Waits: _waits,
    Settles: _settles,
    Trains: _trains,
    Reports: _reports,
    Frees: _frees,
    Adds: _adds,
    Opens: _opens,
    Raises: _raises,
    Widens: _widens,
}


def _amount(more: Resources) -> str:
    parts = [f"{more.cpu:g} cpu"] if more.cpu else []
    parts += [f"{more.memory_gib:.4g} GiB"] if more.memory_gib else []
    return ", ".join([*parts, f"{more.gpu} gpu"] if more.gpu else parts)


def _span(span: Span) -> str:
    return f"{span.min} to {span.max}"
