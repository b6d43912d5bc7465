"""The chain of a message: back to its roots and on to its effects, and its table for people.

Backwards every cause is followed. Forwards one decision is passed and no second one: `weir why` of
that decision has its effects.

Orders are few, and read whole. Facts are many: they are read for the jobs and nodes of the chain,
and for all nodes only around a decision that names a change of one.

Messages that come often and alike (reports, periodic checkpoints, one for each task) are one row
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
    """All in the order of storing. `before` ends where no cause is known."""

    before: tuple[Step, ...]
    event: Step
    after: tuple[Step, ...]


def build_chain(event: Entry, known: Known) -> Chain:
    return Chain(_causes(event, known), Step(event, cause_of(event, known)), _effects(event, known))


def causes(event: Entry, known: Known) -> dict[Name, Step]:
    """All that led to it, itself included."""
    found: dict[Name, Step] = {}
    waiting = [event]
    while waiting:
        entry = waiting.pop()
        if _name(entry) not in found:
            found[_name(entry)] = Step(entry, cause_of(entry, known))
            waiting += found[_name(entry)].because
    return found


def _causes(event: Entry, known: Known) -> tuple[Step, ...]:
    found = causes(event, known)
    return _in_log_order([step for name, step in found.items() if name != _name(event)])


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
    return _in_log_order(list(found.values()))


def _follows(event: Entry, known: Known) -> dict[Name, list[Step]]:
    """Return the direct effects of each message among the entries after the event."""
    follows: dict[Name, list[Step]] = defaultdict(list)
    for entry in known.entries:
        if entry.order > event.order:
            step = Step(entry, cause_of(entry, known))
            for cause in step.because:
                follows[_name(cause)].append(step)
    return follows


def _is_decision(entry: Entry) -> bool:
    return isinstance(entry.message, AllocationDecided)


def _name(entry: Entry) -> Name:
    return entry.stream, entry.sequence


def _in_log_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.entry.order))


class Lack(msgspec.Struct, frozen=True):
    """Facts that are not read yet: of a job (`<namespace>.<name>`), of a node up to a time, of all
    nodes around one.
    """

    of: Literal["job", "node", "nodes"]
    whose: str = ""
    at_s: float = 0.0


def lacks(entries: Iterable[Entry], known: Known) -> set[Lack]:
    """`entries`: the messages to explain."""
    return {lack for entry in entries for lack in _of(entry, known)}


def _of(entry: Entry, known: Known) -> Iterator[Lack]:
    said = entry.message
    if key := key_of(entry):
        yield Lack("job", key)
    if isinstance(said, CapacityChanged):
        yield Lack("node", said.key(), entry.stored_s)
    if isinstance(said, AllocationDecided) and said.cause != "-" and said.cause not in known.by_id:
        yield _where(said, entry.stored_s, known)


def _where(said: AllocationDecided, at_s: float, known: Known) -> Lack:
    """The id of a fact begins with its job's uid; that of a node's change does not."""
    uid, whole = said.cause.partition(".")[0], said.cause.count(".") > 1
    keys = [
        key for key, uids in known.uids.items() if whole and uid.isdecimal() and int(uid) in uids
    ]
    return Lack("job", keys[0]) if keys else Lack("nodes", at_s=at_s)


ALIKE = 3
"""So many of a kind with the same cause are shown; of more, the first."""
AT = 12
BECAUSE = 11
HEADING = "bold underline"
ROOTS = {
    JobRequested: "a person",
    CancelRequested: "a person",
    ChangeRequested: "a person",
    SuspendRequested: "a person",
    ResumeRequested: "a person",
    ForgetRequested: "a person",
    CapacityChanged: "the world",
    QuotaChanged: "the world",
    ClaimsChanged: "the world",
    TaskLeaving: "the world",
    TaskExited: "the world",
    ServiceTroubled: "the world",
    DeadLetter: "the world",
}
UNKNOWN = "not known"
"""The cause of any other kind that has none: it is not in the log (any more), or not told."""


def chain_table(
    chain: Chain, zone: tzinfo | None, width: int | None, most: int | None
) -> Iterator[Text]:
    """`zone` None: that of this machine. `width` None: lines are not folded. `most`: rows a part;
    None: all.
    """
    zero_s = chain.event.entry.stored_s
    heads = [("WHEN", AT + 1), ("EVENT", 7), ("BECAUSE OF", BECAUSE + 1), ("FACT", 0)]
    yield Text("".join(f"{head:<{wide}}" for head, wide in heads), "dim")
    for heading, steps, from_its_end in _parts(chain, zone):
        yield Text(f"\n{heading}", HEADING)
        shown = _merge_alike(steps)
        kept, left = _cut(shown, most, from_its_end)
        for step, more in kept:
            yield _row(step, zero_s, width)
            if more:
                yield Text(f"{'':<{AT + 1}}{_more(step, more, zero_s)}", "dim")
        if left:
            yield Text(f"{'':<{AT + 1}}and {left} more: --all shows them", "dim")


def _parts(chain: Chain, zone: tzinfo | None) -> Iterator[tuple[str, Sequence[Step], bool]]:
    """Heading, rows, and True if the last rows of many are kept."""
    at = " ".join(date_and_time(chain.event.entry.stored_s, zone))
    if chain.before:
        yield "what led to it", chain.before, True
    yield f"the event, {at}", [chain.event], False
    if chain.after:
        yield "what came of it", chain.after, False


def _row(step: Step, zero_s: float, width: int | None) -> Text:
    name, *rest = event_cells(step.entry)
    after = (offset(step.entry, zero_s), AT, "dim")
    because: Cell = (reasons(step), BECAUSE, "dim")
    return cells_and_sentence([after, name, because, *rest], format_event(step.entry), width)


def offset(entry: Entry, zero_s: float) -> str:
    """How long before or after the event."""
    apart = entry.stored_s - zero_s
    if apart == 0:
        return "0"
    size = format_duration(abs(apart), fine=True)
    return f"{'-' if apart < 0 else '+'}{size}"


def reasons(step: Step) -> str:
    """Return the names of its causes; for a root its kind."""
    return " ".join(map(event_name, step.because)) or ROOTS.get(type(step.entry.message), UNKNOWN)


def _merge_alike(steps: Sequence[Step]) -> list[tuple[Step, list[Step]]]:
    """Each with those like it that it stands for."""
    alike: dict[tuple[str, str, str], list[Step]] = {}
    for step in steps:
        alike.setdefault((event_kind(step.entry.message), _whose(step), reasons(step)), []).append(
            step
        )
    kept: list[tuple[Step, list[Step]]] = [
        (s, []) for group in alike.values() if len(group) <= ALIKE for s in group
    ]
    firsts = [(group[0], group[1:]) for group in alike.values() if len(group) > ALIKE]
    return sorted([*kept, *firsts], key=lambda shown: shown[0].entry.order)


def _whose(step: Step) -> str:
    return (
        f"{getattr(step.entry.message, 'namespace', '')}/{getattr(step.entry.message, 'job', '')}"
    )


def _cut(
    shown: list[tuple[Step, list[Step]]], most: int | None, from_its_end: bool
) -> tuple[list[tuple[Step, list[Step]]], int]:
    if most is None or len(shown) <= most:
        return shown, 0
    return (shown[-most:] if from_its_end else shown[:most]), len(shown) - most


def _more(step: Step, more: Sequence[Step], zero_s: float) -> str:
    last = more[-1].entry
    return (
        f"and {len(more)} more of {event_kind(step.entry.message)}, the last {event_name(last)} at"
        f" {offset(last, zero_s)}"
    )
