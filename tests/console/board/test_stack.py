"""Who held the cores over time: what was said, read at even times."""

from __future__ import annotations

from services.console.board.board import begun
from services.console.board.stack import COLUMNS, NAMED, Stack, sampled, stack
from services.console.board.story import Held
from tests.allocator.builders import accepted, request
from tests.console.board.builders import Log, holding
from tests.console.board.test_board import JOB, running


def test_at_any_time_what_is_held_and_free_is_what_is_allocatable() -> None:
    log = running()
    board = log.say(holding(pods=5, others=1), holding("n2", pods=2, job="unknown"))
    read = stack(board, 0.0, log.now_s)

    assert len(read.times) == COLUMNS and (read.times[0], read.times[-1]) == (1.0, log.now_s)
    (band,) = read.jobs
    assert band.job == JOB and band.cores[-1] == 5.0 and read.rest[-1] == 2.0, (
        "the rest is of no job that we know"
    )
    for column in range(COLUMNS):
        held = band.cores[column] + read.rest[column] + read.others[column]
        assert abs(held + read.free[column] - read.allocatable[column]) < 1e-9


def test_between_two_facts_it_is_as_the_earlier_says() -> None:
    points = (Held(1.0, 2.0), Held(3.0, 4.0))

    assert [p and p.cpu for p in sampled(points, [0.0, 1.0, 2.9, 3.0, 9.0])] == [
        None,
        2.0,
        2.0,
        4.0,
        4.0,
    ]


def test_the_jobs_that_held_most_are_named_and_the_others_are_summed() -> None:
    log = Log()
    for number in range(NAMED + 2):
        name = f"job{number}"
        log.say(
            accepted(request(name), uid=number + 1),
            holding(f"n{number}", pods=number + 1, job=name, cpu=20),
        )
    log.say(holding("idle"), after_s=1000.0)  # beside which it does not matter who came first
    read = stack(log.board, 0.0, log.now_s)

    assert len(read.jobs) == NAMED and "default.job0" not in [band.job for band in read.jobs]
    whole = sum(range(1, NAMED + 3))
    assert sum(band.cores[-1] for band in read.jobs) + read.rest[-1] == whole


def test_where_no_node_was_heard_of_there_is_nothing_to_read() -> None:
    assert stack(begun(), 0.0, 10.0) == Stack()
