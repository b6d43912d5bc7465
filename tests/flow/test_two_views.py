"""Tests that allocator and launcher agree on every job in the end.

They read the same two streams, each in its own order. They agree on the generation that runs, the
one in flight, those that were abandoned, and whether the job is over.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.allocator.state.state import State, apply
from services.launcher import view as views
from services.launcher.jobs import is_ahead, is_paused, locked_generation
from services.launcher.service import CONSUMED, PUBLISHED
from services.launcher.steps.generations import pending_generation
from services.launcher.view import BusState, View
from shared.bus.subjects import FACTS, ORDERS
from shared.messages import CheckpointSaved
from tests.flow.histories import History, merges, steps
from tests.launcher.builders import JOB

Order = list[tuple[str, int]]


@dataclass(frozen=True)
class Belief:
    """A service's view of one job. `flight` is the newest generation that may still start."""

    running: int | None = None
    flight: int | None = None
    abandoned: frozenset[int] = frozenset()


def at_s(stream: str, index: int) -> float:
    return float(index)


def allocator(history: History, order: Order) -> dict[int, Belief]:
    """Return the view of each job that is not over, by uid."""
    state = State()
    for stream, index in order:
        state = apply(state, history.streams[stream][index], stream, index + 1, at_s(stream, index))
    return {
        job.uid: Belief(job.running, job.pending_generation, frozenset(job.given_up))
        for job in state.jobs.values()
    }


def launcher(history: History, order: Order) -> dict[int, Belief]:
    view = View()
    for stream, index in order:
        message = history.streams[stream][index]
        if isinstance(message, (*CONSUMED, *PUBLISHED)):
            view = views.fold_message(view, message, at_s(stream, index))
    return {uid: belief(job) for uid, job in view.bus_state.jobs.items()}


def belief(job) -> Belief:
    """Return the launcher's view of a job.

    A `locked` generation comes before the one in flight, which does not change by that.
    """
    if is_paused(job):
        return Belief()
    newest = job.generations[job.newest]
    flight = (
        job.newest
        if newest.decision.tasks and not newest.abandoned and is_ahead(job, job.newest)
        else None
    )
    assert locked_generation(job) is not None or pending_generation(job) == flight
    gone = frozenset(n for n, g in job.generations.items() if g.abandoned and is_ahead(job, n))
    return Belief(job.running, flight, gone)


def story(*kinds: str) -> History:
    """Return the history of these steps, each `kind` or `kind:choice`."""
    history = History()
    for kind in kinds:
        name, _, choice = kind.partition(":")
        history.act(name, int(choice or 0))
    return history


def orders_first(history: History) -> Order:
    return [(stream, n) for stream in (ORDERS, FACTS) for n in range(len(history.streams[stream]))]


def facts_first(history: History) -> Order:
    return [(stream, n) for stream in (FACTS, ORDERS) for n in range(len(history.streams[stream]))]


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), steps)
def test_allocator_and_launcher_agree_for_every_order_of_the_two_streams(
    data: st.DataObject, drawn
) -> None:
    history = History()
    for kind, choice in drawn:
        history.act(kind, choice)
    first, second = data.draw(merges(history)), data.draw(merges(history))
    told = allocator(history, first)
    assert told == launcher(history, second)
    assert told == allocator(history, second) and told == launcher(history, first)


# ------------------------------------------------------------ cases that once made a difference


def agreed(history: History, *orders: Order) -> Belief:
    """Return the view of the newest job; check that it is the same in each of these orders."""
    told = [read(history, order) for read in (allocator, launcher) for order in orders]
    assert all(each == told[0] for each in told), told
    return told[0][history.uid]


def both(history: History) -> Belief:
    return agreed(history, orders_first(history), facts_first(history))


def test_an_abandoned_generation_that_resumes_is_running_for_both_services() -> None:
    history = story("order", "resume", "decide", "order", "abandon:1", "resume")

    assert both(history) == Belief(running=2)


def test_a_decision_after_the_abandonment_stays_in_flight_when_the_abandoned_one_resumes() -> None:
    history = story("order", "resume", "decide", "order", "abandon:1", "decide", "resume")

    assert both(history) == Belief(running=2, flight=3)


def test_facts_that_are_read_before_the_job_is_accepted_count() -> None:
    history = story("order", "resume", "save")

    assert both(history) == Belief(running=1)


def test_facts_of_a_second_job_with_the_same_name_wait_for_the_end_of_the_first() -> None:
    history = story("order", "resume", "finish", "decide", "order", "resume")

    assert both(history) == Belief(running=1)


def test_a_resumption_counts_even_if_it_is_read_before_the_suspension() -> None:
    history = story("order", "resume", "suspend", "decide", "order", "resume")

    assert both(history) == Belief(running=3)


def test_a_repeated_older_resumption_does_not_hide_a_newer_one() -> None:
    history = story("order", "resume", "decide", "order", "resume")
    history.store(history.streams[FACTS][1])
    assert history.streams[FACTS][-1].generation == 1

    assert both(history) == Belief(running=2)


def test_a_checkpoint_proves_that_its_generation_runs_if_the_resumption_was_purged() -> None:
    """The stream of facts discards its oldest messages when it is full."""
    history = story("order", "resume", "save")
    history.streams[FACTS] = [m for m in history.streams[FACTS] if isinstance(m, CheckpointSaved)]

    assert both(history) == Belief(running=1)


def test_facts_read_early_survive_a_restart_of_the_service() -> None:
    history = story("order", "resume")
    facts = [(FACTS, n) for n in range(len(history.streams[FACTS]))]
    state, view = State(), View()
    for stream, n in facts:
        state = apply(state, history.streams[stream][n], stream, n + 1, 1.0)
        view = views.fold_message(view, history.streams[stream][n], 1.0)
    state = msgspec.json.decode(msgspec.json.encode(state), type=State)
    view = View(bus_state=msgspec.json.decode(msgspec.json.encode(view.bus_state), type=BusState))
    for n, message in enumerate(history.streams[ORDERS]):
        state = apply(state, message, ORDERS, n + 1, 1.0)
        view = (
            views.fold_message(view, message, 1.0)
            if isinstance(message, (*CONSUMED, *PUBLISHED))
            else view
        )

    assert state.jobs[f"default.{JOB}"].running == view.bus_state.jobs[history.uid].running == 1


def test_a_repeated_suspension_changes_nothing() -> None:
    history = story("order", "resume", "suspend")
    history.revision += 1
    history.store(msgspec.structs.replace(history.streams[ORDERS][-1], revision=history.revision))
    assert both(history) == Belief()

    history.act("decide", 0)
    history.act("order", 0)
    assert both(history) == Belief(flight=3)
