"""From a message back to its roots, and on to what it brought about: pure.

Backwards every cause is followed. Forwards one decision is passed and no second one: what that
brings about is its own story, and `weir why` tells it of its name.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from services.cli.entry import Entry
from services.console.why.known import Known
from services.console.why.rules import because
from shared.messages import AllocationDecided

Name = tuple[str, int]
"""Stream and sequence."""


class Step(NamedTuple):
    """A message, and what led to it directly."""

    entry: Entry
    because: tuple[Entry, ...]


class Chain(NamedTuple):
    """All in the order of storing. `before` ends where no cause is known."""

    before: tuple[Step, ...]
    event: Step
    after: tuple[Step, ...]


def chain(event: Entry, known: Known) -> Chain:
    return Chain(_causes(event, known), Step(event, because(event, known)), _effects(event, known))


def causes(event: Entry, known: Known) -> dict[Name, Step]:
    """All that led to it, itself included."""
    found: dict[Name, Step] = {}
    waiting = [event]
    while waiting:
        entry = waiting.pop()
        if _name(entry) not in found:
            found[_name(entry)] = Step(entry, because(entry, known))
            waiting += found[_name(entry)].because
    return found


def _causes(event: Entry, known: Known) -> tuple[Step, ...]:
    found = causes(event, known)
    return _ordered([step for name, step in found.items() if name != _name(event)])


def _effects(event: Entry, known: Known) -> tuple[Step, ...]:
    follows = _follows(event, known)
    found: dict[Name, Step] = {}
    waiting = deque([(event, _is_decision(event))])
    while waiting:
        entry, decided = waiting.popleft()
        for step in follows[_name(entry)]:
            if _name(step.entry) not in found:
                found[_name(step.entry)] = step
                if not (decided and _is_decision(step.entry)):
                    waiting.append((step.entry, decided or _is_decision(step.entry)))
    return _ordered(list(found.values()))


def _follows(event: Entry, known: Known) -> dict[Name, list[Step]]:
    """By each message: what it directly led to, of what was stored after the event."""
    follows: dict[Name, list[Step]] = defaultdict(list)
    for entry in known.entries:
        if entry.order > event.order:
            step = Step(entry, because(entry, known))
            for cause in step.because:
                follows[_name(cause)].append(step)
    return follows


def _is_decision(entry: Entry) -> bool:
    return isinstance(entry.said, AllocationDecided)


def _name(entry: Entry) -> Name:
    return entry.stream, entry.sequence


def _ordered(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.entry.order))
