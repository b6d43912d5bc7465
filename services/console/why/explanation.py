"""An explanation as text: one line for each fact, then the changes that would give the job more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from typing import Any

from services.allocator.job_views import ENDED, TRAINS
from services.allocator.placement.trial import describe_resources as amount
from services.allocator.policies.contract import Size
from services.allocator.state.state import State
from services.console.text.sentences import ASK, LISTED, sentence
from services.whatif.event_log import LogEntry, Moment
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
from services.whatif.explain.explanation import (
    DecisionRecord,
    Explanation,
    Holding,
    Means,
    Prospect,
)
from services.whatif.proposal import Effect
from shared.bus.subjects import tag_of
from shared.messages import Message, Resources, Span
from shared.text import (
    format_count,
    format_duration,
    format_names,
    format_payback,
    format_size,
    headline,
    single_line,
)

WIDTH = 11
"""The heading of a line."""
SILENT_S = 10.0
"""A report that is no older is of now."""
UNSEEN = " and what its preparation slows, which nobody foresees"
APART = 0.1
"""A model that expects another speed than was measured, by more than this, is said to."""


def format_explanation(e: Explanation, zone: tzinfo | None) -> list[str]:
    """`zone` None: that of this machine."""
    words = _Words(e, zone)
    named = ((name, line) for name, lines in words.parts() for line in lines)
    before, out = "", [single_line(words.heading())]
    for name, line in named:
        out.append(f"  {name if name != before else '':<{WIDTH}}{single_line(line)}")
        before = name
    return out


class _Words:
    """Of one explanation, with times of one zone."""

    def __init__(self, e: Explanation, zone: tzinfo | None) -> None:
        self.e, self.zone = e, zone

    def heading(self) -> str:
        e = self.e
        at = datetime.fromtimestamp(e.at_s, self.zone)
        return (
            f"{e.namespace}/{e.job} at {at:%Y-%m-%d %H:%M:%S}: policy {e.policy}, priority"
            f" {e.priority}"
        )

    def when(self, at_s: float) -> str:
        """The time of day; with the date, where it is another day's than the moment."""
        at, day = (datetime.fromtimestamp(s, self.zone) for s in (at_s, self.e.at_s))
        return f"{at:%H:%M:%S}" if at.date() == day.date() else f"{at:%Y-%m-%d %H:%M:%S}"

    def parts(self) -> Iterator[tuple[str, Iterable[str]]]:
        e = self.e
        yield "has", self.has()
        yield "is to have", [_holding(e.comes), *_places(e.comes)] if e.comes else []
        yield "because", self.because(e.ground) if e.ground else []
        yield (
            "not",
            (
                [f"{_size(o)}, batch {o.batch}: {o.why}" for o in e.ground.alternatives]
                if e.ground
                else []
            ),
        )
        yield (
            "now",
            (
                [f"{headline(e.why)}{f' (until {self.when(e.until_s)})' if e.until_s else ''}"]
                if e.why
                else []
            ),
        )
        yield "for more", [] if e.unasked else self.for_more()
        yield "faster?", [_prospect(e.prospect)] if e.prospect else []
        yield "note", [e.unasked, *e.notes] if e.unasked else e.notes

    def has(self) -> list[str]:
        e, since = self.e, format_duration(self.e.at_s - self.e.since_s)
        if e.phase in ENDED.values():
            return [
                f"nothing: it is over ({e.phase.lower()}) since {self.when(e.since_s)}, {since}"
            ]
        if e.runs is None:
            return [
                f"nothing: it {'starts' if e.comes else 'waits'}, asked for at"
                f" {self.when(e.since_s)}, {since} ago"
            ]
        if e.phase not in TRAINS:
            goes_on = "it resumes from its checkpoint" if e.comes else "it waits"
            return [f"nothing that trains: {_size(e.runs)} ended; {goes_on}"]
        speed = (
            f", last reported {e.samples_per_second:,.0f} examples/s{self.silent()}"
            if e.samples_per_second
            else ""
        )
        done = f", {100 * e.samples / e.total_samples:.1f} % done" if e.total_samples else ""
        return [f"{_holding(e.runs)}, for {since}{speed}{done}", *_places(e.runs)]

    def silent(self) -> str:
        """A job that trains reports again and again; without reports it may be stuck."""
        if self.e.reported_s is None or (silent_s := self.e.at_s - self.e.reported_s) < SILENT_S:
            return ""
        return f" {format_duration(silent_s)} ago"

    def because(self, ground: DecisionRecord) -> Iterator[str]:
        gain = f"; {format_payback(ground.gain_s, ground.cost_s)}{UNSEEN}" if ground.gain_s else ""
        yield (
            f"{ground.reason}{gain} (decided at {self.when(ground.decided_s)}, generation"
            f" {ground.generation})"
        )
        if ground.event:
            yield f"after {self.event(ground.event)}"
        elif ground.cause != "-":
            yield f"after {ground.cause}, which is not among the facts that were read"

    def event(self, event: LogEntry) -> str:
        message = event.message
        whose = message.key().replace(".", "/")
        return f"{tag_of(type(message))} at {self.when(event.at_s)}: {whose} {sentence(message)}"

    def for_more(self) -> Iterator[str]:
        for means in self.e.means:
            yield self.means(means)
        if not self.e.means:
            yield f"nothing would help: {headline(self.e.nothing)}"

    def means(self, means: Means) -> str:
        changes = otherwise(means.changes, self.e, self.when)
        losers = "".join(f"; {_loser(other)}" for other in means.others)
        return f"{changes}: it would have {_holding(means.gives)}{losers}"


# ---------------------------------------------------------------- words


def _holding(has: Holding) -> str:
    gpu = f", {has.gpu} gpu" if has.gpu else ""
    whole = f"{has.cpu:g} cpu, {has.memory_gib:.4g} GiB{gpu}"
    return f"{_size(has)}, batch {has.batch}, with the chief {whole} in all"


def _places(has: Holding) -> list[str]:
    places = []
    for node, roles in has.nodes.items():
        places.append(
            f"{node}: {', '.join(f'{count} {role}' for role, count in Counter(roles).items())}"
        )
    return ["on " + "; ".join(places)]


def _prospect(p: Prospect) -> str:
    word = "more would be faster" if p.faster else "more would not be faster"
    speeds = f"{p.samples_per_second:,.0f} -> {p.larger_samples_per_second:,.0f} examples/s"
    beyond = ", more than was asked for at most" if p.beyond else ""
    return f"{word}: {speeds} at {_size(p)}{beyond}: {_pair(p)}"


def _pair(p: Prospect) -> str:
    """Where both speeds come from."""
    fit = f"by a fit to {format_count(p.sizes_seen, 'size')} of its own"
    if not p.measured:
        return (
            f"both {fit}; with its tasks, batch and number of nodes of now it has told no speed yet"
        )
    apart = abs(p.expected - p.samples_per_second) > APART * p.samples_per_second
    doubt = (
        f" that expects {p.expected:,.0f} where {p.samples_per_second:,.0f} were measured"
        if apart
        else ""
    )
    return f"measured (a mean, the newest counts most) -> {fit}{doubt}"


def _loser(effect: Effect) -> str:
    name = effect.job.replace(".", "/")
    return (
        f"{name} would have {_or_nothing(effect.beside)} in place of {_or_nothing(effect.without)}"
    )


def _or_nothing(size: Size | None) -> str:
    return _size(size) if size else "nothing"


def _size(of: Any) -> str:
    return format_size(of.ps, of.workers)


When = Callable[[float], str]
"""A point in time, in words."""
BY_ITSELF = (Waits, Settles, Trains, Reports)


def otherwise(changes: Sequence[AnyChange], e: Explanation, when: When) -> str:
    """Return the events to wait for first, then the actions of a user."""
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
    return (
        f"it has said how fast it is ({taken}, by the model of what its program's and other jobs"
        " showed)"
    )


def _frees(change: Frees, e: Explanation, when: When) -> str:
    return f"{_amount(change.more)} more free on {change.node}"


def _adds(change: Adds, e: Explanation, when: When) -> str:
    what = "one more node" if change.nodes == 1 else f"{change.nodes} more nodes"
    return (
        f"{what} {f'like {change.like}' if change.like else 'of a new shape'}"
        f" ({amount(change.shape)})"
    )


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


def no_job_to_explain(
    there: Moment, key: str, later: Message | None, zone: tzinfo | None = None
) -> str:
    """`later`: the newest acceptance of such a job in the whole log, if there is one."""
    name = key.replace(".", "/")
    asked = [a for a in there.state.asked.values() if a.request.key() == key]
    if asked:
        at = _time(asked[-1].asked_s, zone)
        return f"job {name}, asked for at {at}, was not answered yet: is the allocator running?"
    if there.rejected:
        return single_line(f"job {name} was refused: {'; '.join(there.rejected.reasons)}")
    at, accepted_s = _time(there.at_s, zone), getattr(later, "accepted_s", 0.0)
    if accepted_s > there.at_s:
        return f"there was no job {name} at {at}: it was accepted at {_time(accepted_s, zone)}"
    return f"the log tells of no job {name} up to {at}; {_join_words(there.state)}"


def _join_words(state: State) -> str:
    names = [key.replace(".", "/") for key in [*state.jobs, *reversed(state.closed)]]
    return f"it tells of {format_names(names, LISTED)}" if names else f"nor of any other; {ASK}"


def _time(at_s: float, zone: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(at_s, zone):%Y-%m-%d %H:%M:%S}"
