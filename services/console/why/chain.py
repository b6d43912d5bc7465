"""The chain of a message: back to its roots and on to its effects, and its table for people.

All causes are followed back to the roots. Effects are followed past one decision, but not past a
second one: `weir why` of that decision shows its effects.

There are few orders, so all of them are read. There are many facts: they are read for the jobs and
nodes of the chain, and for all nodes only around a decision that names a change of one.

Similar messages that are frequent (reports, periodic checkpoints, one for each task) are one row
with a count.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import Literal, NamedTuple

import msgspec
from rich.text import Text

from services.console.log_entry import Entry, event_name
from services.console.text.event_lines import (
    Cell,
    cells_and_sentence,
    date_and_time,
    event_cells,
    event_kind,
    format_event,
)
from services.console.why.rules import Known, cause_of, key_of
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    ChangeRequested,
    ClaimsChanged,
    DeadLetter,
    ForgetRequested,
    JobRequested,
    QuotaChanged,
    ResumeRequested,
    ServiceTroubled,
    SuspendRequested,
    TaskExited,
    TaskLeaving,
)
from shared.text import format_duration

Name = tuple[str, int]
"""Stream and sequence."""


class Step(NamedTuple):
    """A message and its direct causes."""

    entry: Entry
    because: tuple[Entry, ...]


class Chain(NamedTuple):
    """A message with its causes and effects, in the order of storing. `before` ends where no cause
    is known.
    """

    before: tuple[Step, ...]
    event: Step
    after: tuple[Step, ...]


def build_chain(event: Entry, known: Known) -> Chain:
    return Chain(_causes(event, known), Step(event, cause_of(event, known)), _effects(event, known))


def causes(event: Entry, known: Known) -> dict[Name, Step]:
    """Return the event and all its direct and indirect causes."""
    steps: dict[Name, Step] = {}
    waiting = [event]
    while waiting:
        entry = waiting.pop()
        name = _name(entry)
        if name not in steps:
            steps[name] = Step(entry, cause_of(entry, known))
            waiting += steps[name].because
    return steps


def _causes(event: Entry, known: Known) -> tuple[Step, ...]:
    steps = causes(event, known)
    del steps[_name(event)]
    return _in_log_order(steps.values())


def _effects(event: Entry, known: Known) -> tuple[Step, ...]:
    direct = _effects_by_cause(event, known)
    steps: dict[Name, Step] = {}
    waiting = deque([(event, _is_decision(event))])
    while waiting:
        entry, decision_passed = waiting.popleft()
        for step in direct[_name(entry)]:
            name = _name(step.entry)
            if name in steps:
                continue
            steps[name] = step
            decides = _is_decision(step.entry)
            if not (decision_passed and decides):
                waiting.append((step.entry, decision_passed or decides))
    return _in_log_order(steps.values())


def _effects_by_cause(event: Entry, known: Known) -> dict[Name, list[Step]]:
    """Return the direct effects of each message among the entries after the event."""
    effects: dict[Name, list[Step]] = defaultdict(list)
    for entry in known.entries:
        if entry.order > event.order:
            step = Step(entry, cause_of(entry, known))
            for cause in step.because:
                effects[_name(cause)].append(step)
    return effects


def _is_decision(entry: Entry) -> bool:
    return isinstance(entry.message, AllocationDecided)


def _name(entry: Entry) -> Name:
    return entry.stream, entry.sequence


def _in_log_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.entry.order))


class Lack(msgspec.Struct, frozen=True):
    """Facts that are not read yet: of a job (`<namespace>.<name>`), of a node up to a time, or of
    all nodes around a time.
    """

    of: Literal["job", "node", "nodes"]
    whose: str = ""
    at_s: float = 0.0


def lacks(entries: Iterable[Entry], known: Known) -> set[Lack]:
    """Return the facts that are missing to explain the messages `entries`."""
    missing = set[Lack]()
    for entry in entries:
        missing.update(_entry_lacks(entry, known))
    return missing


def _entry_lacks(entry: Entry, known: Known) -> Iterator[Lack]:
    message = entry.message
    key = key_of(entry)
    if key:
        yield Lack("job", key)
    if isinstance(message, CapacityChanged):
        yield Lack("node", message.key(), entry.stored_s)
    if isinstance(message, AllocationDecided):
        cause = message.cause
        if cause != "-" and cause not in known.by_id:
            yield _cause_lack(cause, entry.stored_s, known)


def _cause_lack(cause: str, at_s: float, known: Known) -> Lack:
    """Return the facts among which a cause may be. The id of a fact about a job begins with the
    job's uid; that of a node's change does not.
    """
    uid = cause.partition(".")[0]
    if cause.count(".") > 1 and uid.isdecimal():
        for key, uids in known.uids.items():
            if int(uid) in uids:
                return Lack("job", key)
    return Lack("nodes", at_s=at_s)


ALIKE = 3
"""Up to this number of messages of a kind with the same cause are all shown; of more, only the
first.
"""
AT = 12
BECAUSE = 11
HEADING = "bold underline"
PERSON, WORLD = "a person", "the world"
"""The kinds of roots, as `weir why --json` writes them; programs read that."""
ROOT_TEXTS = {PERSON: "a user", WORLD: "the cluster"}
ROOT_KINDS = {
    JobRequested: PERSON,
    CancelRequested: PERSON,
    ChangeRequested: PERSON,
    SuspendRequested: PERSON,
    ResumeRequested: PERSON,
    ForgetRequested: PERSON,
    CapacityChanged: WORLD,
    QuotaChanged: WORLD,
    ClaimsChanged: WORLD,
    TaskLeaving: WORLD,
    TaskExited: WORLD,
    ServiceTroubled: WORLD,
    DeadLetter: WORLD,
}
UNKNOWN = "not known"
"""Shown if another kind has no known cause: it is no longer in the log, or in no message."""


def chain_table(
    chain: Chain, zone: tzinfo | None, width: int | None, most: int | None
) -> Iterator[Text]:
    """Yield the lines. `zone` None: that of this machine. `width` None: lines are not folded.
    `most`: rows a part; None: all.
    """
    zero_s = chain.event.entry.stored_s
    indent = " " * (AT + 1)
    yield Text(f"{'WHEN':<{AT + 1}}{'EVENT':<7}{'BECAUSE OF':<{BECAUSE + 1}}FACT", "dim")
    for heading, steps, keep_last in _parts(chain, zone):
        yield Text(f"\n{heading}", HEADING)
        rows = _merge_alike(steps)
        left = 0 if most is None else max(len(rows) - most, 0)
        if left:
            rows = rows[left:] if keep_last else rows[:-left]
        for step, more in rows:
            yield _row(step, zero_s, width)
            if more:
                yield Text(f"{indent}{_more(step, more, zero_s)}", "dim")
        if left:
            yield Text(f"{indent}and {left} more: --all shows them", "dim")


def _parts(chain: Chain, zone: tzinfo | None) -> Iterator[tuple[str, Sequence[Step], bool]]:
    """Yield heading and rows, and True if the last rows of many are kept."""
    at = " ".join(date_and_time(chain.event.entry.stored_s, zone))
    if chain.before:
        yield "causes", chain.before, True
    yield f"the event, {at}", [chain.event], False
    if chain.after:
        yield "effects", chain.after, False


def _row(step: Step, zero_s: float, width: int | None) -> Text:
    name, *rest = event_cells(step.entry)
    at: Cell = (offset(step.entry, zero_s), AT, "dim")
    because: Cell = (reasons(step), BECAUSE, "dim")
    return cells_and_sentence([at, name, because, *rest], format_event(step.entry), width)


def offset(entry: Entry, zero_s: float) -> str:
    """Return the signed time from the event to the entry."""
    offset_s = entry.stored_s - zero_s
    if offset_s == 0:
        return "0"
    sign = "-" if offset_s < 0 else "+"
    return sign + format_duration(abs(offset_s), fine=True)


def reasons(step: Step) -> str:
    """Return the names of its causes; for a root the text of its kind."""
    kind = root_kind(step)
    return " ".join(map(event_name, step.because)) or ROOT_TEXTS.get(kind, kind)


def root_kind(step: Step) -> str:
    """Return the kind of a step without a cause in the log."""
    return ROOT_KINDS.get(type(step.entry.message), UNKNOWN)


def _merge_alike(steps: Sequence[Step]) -> list[tuple[Step, list[Step]]]:
    """Return the steps to show, each with the similar steps that it stands for."""
    groups: dict[tuple[str, str, str], list[Step]] = {}
    for step in steps:
        similar = (event_kind(step.entry.message), _job_name(step), reasons(step))
        groups.setdefault(similar, []).append(step)
    rows = list[tuple[Step, list[Step]]]()
    for group in groups.values():
        if len(group) > ALIKE:
            rows.append((group[0], group[1:]))
        else:
            rows += [(step, []) for step in group]
    return sorted(rows, key=lambda row: row[0].entry.order)


def _job_name(step: Step) -> str:
    message = step.entry.message
    return f"{getattr(message, 'namespace', '')}/{getattr(message, 'job', '')}"


def _more(step: Step, more: Sequence[Step], zero_s: float) -> str:
    last = more[-1].entry
    kind = event_kind(step.entry.message)
    at = offset(last, zero_s)
    return f"and {len(more)} more of {kind}, the last {event_name(last)} at {at}"
