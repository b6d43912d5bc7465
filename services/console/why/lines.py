"""A chain as a table for people: when, which, what, whose, because of what, and a sentence. Pure.

What comes often and alike (reports, periodic checkpoints, a task a pod) is told once and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo

from rich.text import Text

from services.cli.columns import Cell, beside
from services.cli.entry import Entry
from services.cli.event_line import cells, fact, told, when
from services.cli.event_name import name_of
from services.console.why.chain import Chain, Step
from shared.messages import (
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


def table(chain: Chain, zone: tzinfo | None, width: int | None, most: int | None) -> Iterator[Text]:
    """`zone` None: that of this machine. `width` None: lines are not folded. `most`: rows a part;
    None: all.
    """
    zero_s = chain.event.entry.stored_s
    heads = [("WHEN", AT + 1), ("EVENT", 7), ("BECAUSE OF", BECAUSE + 1), ("FACT", 0)]
    yield Text("".join(f"{head:<{wide}}" for head, wide in heads), "dim")
    for heading, steps, from_its_end in _parts(chain, zone):
        yield Text(f"\n{heading}", HEADING)
        shown = _thinned(steps)
        kept, left = _cut(shown, most, from_its_end)
        for step, more in kept:
            yield _row(step, zero_s, width)
            if more:
                yield Text(f"{'':<{AT + 1}}{_more(step, more, zero_s)}", "dim")
        if left:
            yield Text(f"{'':<{AT + 1}}and {left} more: --all shows them", "dim")


def _parts(chain: Chain, zone: tzinfo | None) -> Iterator[tuple[str, Sequence[Step], bool]]:
    """Heading, rows, and whether of many the last count."""
    at = " ".join(when(chain.event.entry.stored_s, zone))
    if chain.before:
        yield "what led to it", chain.before, True
    yield f"the event, {at}", [chain.event], False
    if chain.after:
        yield "what came of it", chain.after, False


def _row(step: Step, zero_s: float, width: int | None) -> Text:
    name, *rest = cells(step.entry)
    after = (offset(step.entry, zero_s), AT, "dim")
    because: Cell = (reasons(step), BECAUSE, "dim")
    return beside([after, name, because, *rest], told(step.entry), width)


def offset(entry: Entry, zero_s: float) -> str:
    """How long before or after the event."""
    apart = entry.stored_s - zero_s
    if apart == 0:
        return "0"
    size = format_duration(abs(apart), fine=True)
    return f"{'-' if apart < 0 else '+'}{size}"


def reasons(step: Step) -> str:
    """The names of what led to it; of a root what it is."""
    return " ".join(map(name_of, step.because)) or ROOTS.get(type(step.entry.said), UNKNOWN)


def _thinned(steps: Sequence[Step]) -> list[tuple[Step, list[Step]]]:
    """Each with those like it that it stands for."""
    alike: dict[tuple[str, str, str], list[Step]] = {}
    for step in steps:
        alike.setdefault((fact(step.entry.said), _whose(step), reasons(step)), []).append(step)
    kept: list[tuple[Step, list[Step]]] = [
        (s, []) for group in alike.values() if len(group) <= ALIKE for s in group
    ]
    firsts = [(group[0], group[1:]) for group in alike.values() if len(group) > ALIKE]
    return sorted([*kept, *firsts], key=lambda shown: shown[0].entry.order)


def _whose(step: Step) -> str:
    return f"{getattr(step.entry.said, 'namespace', '')}/{getattr(step.entry.said, 'job', '')}"


def _cut(
    shown: list[tuple[Step, list[Step]]], most: int | None, from_its_end: bool
) -> tuple[list[tuple[Step, list[Step]]], int]:
    if most is None or len(shown) <= most:
        return shown, 0
    return (shown[-most:] if from_its_end else shown[:most]), len(shown) - most


def _more(step: Step, more: Sequence[Step], zero_s: float) -> str:
    last = more[-1].entry
    return f"and {len(more)} more of {fact(step.entry.said)}, the last {name_of(last)} at {offset(last, zero_s)}"
