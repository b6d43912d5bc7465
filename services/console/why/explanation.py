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
from services.console.text.sentences import HOW_TO_SUBMIT, LISTED, sentence
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
from shared.messages import Alternative, Message, Resources, Span
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
"""The width of a line's heading, in columns."""
SILENT_S = 10.0
"""A report that is not older than this counts as current."""
UNFORESEEN_COST = " and the slowdown while it is prepared, which is not predicted"
NOTABLE_ERROR = 0.1
"""The relative error of the model from which on the text mentions it."""


def format_explanation(e: Explanation, zone: tzinfo | None) -> list[str]:
    """Return the explanation as lines. `zone` None: the zone of this machine."""
    writer = _ExplanationText(e, zone)
    lines = [single_line(writer.heading())]
    for name, facts in writer.parts():
        for fact in facts:
            lines.append(f"  {name:<{WIDTH}}{single_line(fact)}")
            name = ""
    return lines


class _ExplanationText:
    """The text of one explanation, with times of one zone."""

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
        """Return the time of day, with the date if it is another day than the explanation's."""
        at = datetime.fromtimestamp(at_s, self.zone)
        now = datetime.fromtimestamp(self.e.at_s, self.zone)
        return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"

    def parts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Yield the heading and the lines of each part."""
        e = self.e
        yield "has", self.current_size()
        if e.comes:
            yield "will have", [_holding(e.comes), _places(e.comes)]
        if e.ground:
            yield "because", self.decision(e.ground)
            yield "not", map(_alternative, e.ground.alternatives)
        if e.why:
            until = f" (until {self.when(e.until_s)})" if e.until_s else ""
            yield "now", [headline(e.why) + until]
        if not e.unasked:
            yield "for more", self.remedies()
        if e.prospect:
            yield "faster?", [_prospect(e.prospect)]
        if e.unasked:
            yield "note", [e.unasked, *e.notes]
        else:
            yield "note", e.notes

    def current_size(self) -> Iterator[str]:
        e = self.e
        lasted = format_duration(e.at_s - e.since_s)
        if e.phase in ENDED.values():
            yield f"nothing: it ended ({e.phase.lower()}) at {self.when(e.since_s)}, {lasted} ago"
        elif e.runs is None:
            state = "starts" if e.comes else "waits"
            yield f"nothing: it {state}, requested at {self.when(e.since_s)}, {lasted} ago"
        elif e.phase not in TRAINS:
            next_step = "it resumes from its checkpoint" if e.comes else "it waits"
            yield f"nothing that trains: {_size(e.runs)} ended; {next_step}"
        else:
            yield f"{_holding(e.runs)}, for {lasted}{self.speed()}{_share_done(e)}"
            yield _places(e.runs)

    def speed(self) -> str:
        """Return the last reported speed, and the age of an old report: the job may be stuck."""
        e = self.e
        if not e.samples_per_second:
            return ""
        speed = f", last reported {e.samples_per_second:,.0f} examples/s"
        if e.reported_s is None or e.at_s - e.reported_s < SILENT_S:
            return speed
        return f"{speed} {format_duration(e.at_s - e.reported_s)} ago"

    def decision(self, record: DecisionRecord) -> Iterator[str]:
        gain = ""
        if record.gain_s:
            gain = f"; {format_payback(record.gain_s, record.cost_s)}{UNFORESEEN_COST}"
        at = self.when(record.decided_s)
        yield f"{record.reason}{gain} (decided at {at}, generation {record.generation})"
        if record.event:
            yield f"after {self.event(record.event)}"
        elif record.cause != "-":
            yield f"after {record.cause}, which was not found in the log"

    def event(self, event: LogEntry) -> str:
        message = event.message
        subject = message.key().replace(".", "/")
        return f"{tag_of(type(message))} at {self.when(event.at_s)}: {subject} {sentence(message)}"

    def remedies(self) -> Iterator[str]:
        for means in self.e.means:
            yield self.remedy(means)
        if not self.e.means:
            yield f"nothing would help: {headline(self.e.nothing)}"

    def remedy(self, means: Means) -> str:
        changes = format_changes(means.changes, self.e, self.when)
        effects = [f"it would have {_holding(means.gives)}", *map(_loser, means.others)]
        return f"{changes}: {'; '.join(effects)}"


# ---------------------------------------------------------------- sizes and speeds


def _share_done(e: Explanation) -> str:
    return f", {100 * e.samples / e.total_samples:.1f} % done" if e.total_samples else ""


def _alternative(other: Alternative) -> str:
    return f"{_size(other)}, batch {other.batch}: {other.why}"


def _holding(has: Holding) -> str:
    gpu = f", {has.gpu} gpu" if has.gpu else ""
    total = f"{has.cpu:g} cpu, {has.memory_gib:.4g} GiB{gpu}"
    return f"{_size(has)}, batch {has.batch}, with the chief {total} in all"


def _places(has: Holding) -> str:
    places = []
    for node, roles in has.nodes.items():
        counts = [f"{count} {role}" for role, count in Counter(roles).items()]
        places.append(f"{node}: {', '.join(counts)}")
    return "on " + "; ".join(places)


def _prospect(p: Prospect) -> str:
    answer = "more would be faster" if p.faster else "more would not be faster"
    speeds = f"{p.samples_per_second:,.0f} -> {p.larger_samples_per_second:,.0f} examples/s"
    beyond = ", more than the requested maximum" if p.beyond else ""
    return f"{answer}: {speeds} at {_size(p)}{beyond}: {_speed_sources(p)}"


def _speed_sources(p: Prospect) -> str:
    """Return the source of both speeds: a measurement, or a fit to the sizes of the job."""
    fit = f"by a fit to {format_count(p.sizes_seen, 'measured size')} of this job"
    if not p.measured:
        return f"both {fit}; no speed was reported yet for its present tasks, batch and nodes"
    doubt = ""
    if abs(p.expected - p.samples_per_second) > NOTABLE_ERROR * p.samples_per_second:
        doubt = f" that predicts {p.expected:,.0f} where {p.samples_per_second:,.0f} were measured"
    return f"measured (a mean, the newest counts most) -> {fit}{doubt}"


def _loser(effect: Effect) -> str:
    name = effect.job.replace(".", "/")
    after, before = _or_nothing(effect.beside), _or_nothing(effect.without)
    return f"{name} would have {after} in place of {before}"


def _or_nothing(size: Size | None) -> str:
    return _size(size) if size else "nothing"


def _size(of: Any) -> str:
    return format_size(of.ps, of.workers)


When = Callable[[float], str]
"""A function that formats a point in time."""
BY_ITSELF = (Waits, Settles, Trains, Reports)


def format_changes(changes: Sequence[AnyChange], e: Explanation, when: When) -> str:
    """Return the events to wait for first, then the actions of a user."""
    if changes == (Waits(until_s=e.at_s),):
        return "no action needed, the decision is pending"
    events, actions = [], []
    for change in changes:
        text = CHANGE_TEXTS[type(change)](change, e, when)
        if isinstance(change, BY_ITSELF):
            events.append(text)
        else:
            actions.append(text)
    if not events:
        return " and ".join(actions)
    once = " and ".join(events)
    return f"once {once}, {' and '.join(actions)}" if actions else f"only waiting, until {once}"


def _waits(change: Waits, e: Explanation, when: When) -> str:
    return f"it is {when(change.until_s)}"


def _settles(change: Settles, e: Explanation, when: When) -> str:
    if not change.jobs:
        return "the pending changes are complete"
    return f"the pending changes of {', '.join(change.jobs).replace('.', '/')} are complete"


def _trains(change: Trains, e: Explanation, when: When) -> str:
    owner = "" if change.job == f"{e.namespace}.{e.job}" else f" of {change.job.replace('.', '/')}"
    return f"generation {change.generation}{owner} trains"


def _reports(change: Reports, e: Explanation, when: When) -> str:
    speed = f"{change.samples_per_second:,.0f} examples/s"
    return (
        f"it has reported its speed (predicted: {speed}, by the model of the jobs of its program"
        " and others)"
    )


def _frees(change: Frees, e: Explanation, when: When) -> str:
    return f"{_amount(change.more)} more free on {change.node}"


def _adds(change: Adds, e: Explanation, when: When) -> str:
    nodes = "one more node" if change.nodes == 1 else f"{change.nodes} more nodes"
    kind = f"like {change.like}" if change.like else "of a new shape"
    return f"{nodes} {kind} ({amount(change.shape)})"


def _opens(change: Opens, e: Explanation, when: When) -> str:
    return f"{change.node} taking tasks again"


def _raises(change: Raises, e: Explanation, when: When) -> str:
    return f"priority {change.priority} in place of {e.priority}"


def _widens(change: Widens, e: Explanation, when: When) -> str:
    bounds = []
    for name in ("ps", "workers", "batch"):
        new, old = getattr(change, name), getattr(e.bounds, name)
        if new != old:
            bounds.append(f"{name} {_span(new)} ({_span(old)} now)")
    return f"requested with {', '.join(bounds)}"


CHANGE_TEXTS: dict[type[Change], Callable[[Any, Explanation, When], str]] = {
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
    parts = []
    if more.cpu:
        parts.append(f"{more.cpu:g} cpu")
    if more.memory_gib:
        parts.append(f"{more.memory_gib:.4g} GiB")
    if more.gpu:
        parts.append(f"{more.gpu} gpu")
    return ", ".join(parts)


def _span(span: Span) -> str:
    return f"{span.min} to {span.max}"


def no_job_to_explain(
    moment: Moment, key: str, later: Message | None, zone: tzinfo | None = None
) -> str:
    """Return the text for a job that does not exist at the moment. `later`: the newest acceptance
    of such a job in the whole log, if there is one.
    """
    name = key.replace(".", "/")
    requests = [asked for asked in moment.state.asked.values() if asked.request.key() == key]
    if requests:
        at = _time(requests[-1].asked_s, zone)
        return f"job {name}, requested at {at}, is not answered yet: is the allocator running?"
    if moment.rejected:
        return single_line(f"job {name} was refused: {'; '.join(moment.rejected.reasons)}")
    at = _time(moment.at_s, zone)
    accepted_s = getattr(later, "accepted_s", 0.0)
    if accepted_s > moment.at_s:
        return f"there was no job {name} at {at}: it was accepted at {_time(accepted_s, zone)}"
    return f"the log has no job {name} up to {at}; {_known_jobs(moment.state)}"


def _known_jobs(state: State) -> str:
    names = [key.replace(".", "/") for key in [*state.jobs, *reversed(state.closed)]]
    return f"it has {format_names(names, LISTED)}" if names else f"it has no other; {HOW_TO_SUBMIT}"


def _time(at_s: float, zone: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(at_s, zone):%Y-%m-%d %H:%M:%S}"
