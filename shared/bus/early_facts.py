"""Facts that wait for the order which they follow on: facts and orders come in two streams, each
read on its own. Pure.

Law: a job that says much pushes out its own facts and nobody else's, and one namespace none of
another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from shared.messages import JobMessage
from shared.text import shortened

MOST_OF_JOB, MOST_OF_NAMESPACE = 128, 512
"""Facts of one job name, and of one namespace, that wait at a time: the newest."""
LONGEST_TEXT = 1_000
"""Characters of each text of a fact that waits."""

E = TypeVar("E")
F = TypeVar("F", bound=JobMessage)


def add_early(waiting: tuple[E, ...], new: E, fact_of: Callable[[E], Any]) -> tuple[E, ...]:
    """Return the facts that wait, with one more and without the oldest one that there is no room
    for beside it.
    """
    fact = fact_of(new)
    of_namespace = [each for each in waiting if fact_of(each).namespace == fact.namespace]
    of_job = [each for each in of_namespace if fact_of(each).job == fact.job]
    dropped: E | None = None
    if len(of_job) >= MOST_OF_JOB:
        dropped = of_job[0]
    elif len(of_namespace) >= MOST_OF_NAMESPACE:
        dropped = of_namespace[0]
    return (*(each for each in waiting if each is not dropped), new)


def brief(fact: F) -> F:
    """Return the fact without the middle of its long texts."""
    texts = {name: getattr(fact, name) for name in fact.__struct_fields__}
    long = {
        name: text
        for name, text in texts.items()
        if isinstance(text, str) and len(text) > LONGEST_TEXT
    }
    return (
        replace(fact, **{name: shortened(text, LONGEST_TEXT) for name, text in long.items()})
        if long
        else fact
    )
