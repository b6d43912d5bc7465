"""Tests of the market: a number for each job, and the price of a second of its work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.models.fitting import fit_model
from services.allocator.models.programs import program_key
from services.allocator.policies.contract import JobSnapshot, ProgramHistory, Size
from services.allocator.policies.weir import market
from services.allocator.policies.weir.job_rows import JobRow, Numbers
from services.allocator.policies.weir.market import JobArrays, Market
from services.allocator.policies.weir.staircase import Config
from shared.messages import Program, Resources
from tests.allocator.builders import EVEN, request

CLUSTER = Resources(cpu=8)
STEPS = tuple(Config(1, n, 32, n, 0.0, 0.0, n / 8, 10.0 * n) for n in (1, 2, 4))
"""Each worker takes an eighth of the cluster and trains 10 examples/s: 80 with all of it."""
PAUSED = ProgramHistory(pause_s=2.0)
"""A job of this program that has not paused yet is assumed to pause for 2 s."""


def job(name: str, size: Size | None = None, **fields: Any) -> JobSnapshot:
    """Return a job with a program of its own."""
    own = Program(name=name, digest=f"sha256-{name.encode().hex():0>64}")
    fields = {"history": PAUSED} | fields
    return JobSnapshot(
        key=f"default.{name}",
        request=request(name, program=own),
        sizes=EVEN,
        submitted_s=5.0,
        size=size,
        **fields,
    )


def row(job: JobSnapshot, left: float = math.nan, **fields: float) -> JobRow:
    """Return the row of a job. `left`: the examples that remain."""
    workers = job.size.workers if job.size else 0
    numbers = Numbers(*[0.0] * len(Numbers._fields))._replace(
        waits=job.size is None,
        busy=job.busy,
        asked_s=job.submitted_s,
        since_s=job.since_s,
        weight=1.0,
        best=80.0,
        speed=10.0 * workers,
        cost=workers / 8,
        pause_s=math.nan if job.pause_s is None else job.pause_s,
        left=left,
        epochs=job.request.epochs,
        epoch=math.nan,
        kin_epoch=job.history.epoch_samples or math.nan if job.history else math.nan,
        kin_pause_s=math.nan
        if job.history is None or job.history.pause_s is None
        else job.history.pause_s,
        ps=float(workers > 0),
        workers=workers,
        batch=32,
    )
    return JobRow(
        there=CLUSTER,
        node=CLUSTER,
        fitted=fit_model([]),
        program=program_key(job),
        digest=job.request.program_version,
        numbers=np.array(numbers._replace(**fields)).tobytes(),
        steps=np.array(STEPS).tobytes(),
        untried=b"",
    )


JOBS = (
    job("waits"),
    job("new"),
    job("paused", Size(1, 2), since_s=100.0, pause_s=4.0, history=None),
    job("never-paused", Size(1, 1), since_s=100.0),
)


LEFT = (240.0, math.nan, 240.0, 240.0)


def field(
    jobs: Sequence[JobSnapshot] = JOBS, lefts: Sequence[float] = LEFT, **fields: float
) -> Market:
    rows = [row(one, left, **fields) for one, left in zip(jobs, lefts, strict=True)]
    table = JobArrays(jobs, rows)
    return Market(table, table.changeable_places())


def test_remaining_times_are_at_the_first_and_last_step() -> None:
    found = field()
    assert found.shortest_s.tolist() == [6.0, 0.0, 6.0, 6.0], "240 examples at 40 a second"
    assert found.alone_s.tolist() == [26.0, 2.0, 24.0, 24.0], (
        "at 10 a second, and the start of who waits"
    )
    assert found.start_s.tolist() == [0.25, 0.25, 0.5, 0.25]
    assert np.isnan(found.left_s).tolist() == [False, True, False, False]
    assert found.left_s[[0, 2, 3]].tolist() == [3.0, 3.0, 3.0], (
        "at 80 a second, of the whole cluster"
    )


def test_an_unknown_job_is_treated_like_the_median() -> None:
    """Work is in seconds of the whole cluster, and includes the start of a waiting job."""
    [queue] = field().queues
    assert queue.sojourn.left_s.tolist() == [3.25, 3.25, 3.0, 3.0]
    [alike] = field(lefts=[math.nan] * 4).queues
    assert alike.sojourn.left_s.tolist() == [1.25, 1.25, 1.0, 1.0], "nothing is known of any"


def test_a_job_grows_again_once_its_pause_is_small_against_its_gain() -> None:
    settles = field().settled_s
    assert settles.tolist() == [
        -math.inf,
        -math.inf,
        pytest.approx(100.0 + 4.0 / (2 * 0.5)),
        -math.inf,
    ]
    early, late = field().step_offers(103.0)[2], field().step_offers(105.0)[2]
    assert np.isneginf(early[2]) and not np.isneginf(late[2]) and not np.isneginf(early[:2]).any()


def test_growth_leaves_a_reserve_while_jobs_arrive() -> None:
    leaves = field(spare_cpu=1.0).reserved_room
    grows = [[False, True, True], [False, True, True], [False, False, True], [False, True, True]]
    assert leaves(5.0).steps.tolist() == grows, "beyond what each has"
    assert leaves(5.0).spare.tolist() == [[1.0, 0.0, 0.0]] * 4
    assert not leaves(math.inf).steps.any(), "nobody has come for long"


@pytest.mark.parametrize(
    ("left", "offered", "unrepaid"),
    [
        (240.0, [10.0, 20.0, 40.0], 0.0),
        (5.0, [10.0, 0.0, 0.0], 40.0),
        (30.0, [10.0, 40.0, 0.0], 20.0),
        (math.nan, [10.0, 20.0, 40.0], 0.0),
    ],
    ids=["all repay", "none repays", "the largest alone repays", "nobody knows what is left"],
)
def test_steps_that_do_not_repay_a_pause_are_left_out(left, offered, unrepaid) -> None:
    """The job trains 10 examples/s and a pause takes 2 s.

    So 30 remaining examples take 3 s as it is, and after a pause have to be done in 1 s.
    """
    found = field([job("one", Size(1, 1))], [left])
    assert found.stairs.speeds[0].tolist()[: len(offered)] == [speed for speed in offered if speed]
    assert found.last_step.tolist() == [np.count_nonzero(offered) - 1]
    assert Config.of_row(found.unrepaid_steps[0].tolist()).speed == unrepaid


def test_a_waiting_job_is_offered_all_its_steps() -> None:
    assert field([job("one")], [5.0]).last_step.tolist() == [2]


def test_jobs_in_flight_or_without_steps_do_not_change() -> None:
    jobs = (job("busy", Size(1, 1), busy=True), *JOBS)
    rows = [row(one, 240.0) for one in jobs]
    rows[1] = replace(rows[1], steps=b"")
    table = JobArrays(jobs, rows)
    assert table.changeable_places().tolist() == [2, 3, 4]
    found = Market(table, table.changeable_places())
    assert [one.request.job for one in found.jobs] == ["new", "paused", "never-paused"]
    alone = JobArrays(jobs[2:], rows[2:])
    assert (
        found.step_offers(105.0).tolist()
        == Market(alone, alone.changeable_places()).step_offers(105.0).tolist()
    )


def test_unknown_remaining_work_comes_from_the_programs_epochs() -> None:
    """The epoch of a running job counts before that of finished ones; without any it is unknown."""
    over = ProgramHistory(epoch_samples=100.0)
    runs, new = job("runs", Size(1, 1), history=over), job("new", history=over)
    new = replace(new, request=replace(runs.request, epochs=3))
    stranger = job("stranger")
    rows = [row(runs, 40.0, epoch=50.0), row(new), row(stranger)]
    assert JobArrays([runs, new], rows[:2]).left.tolist() == [40.0, 150.0]
    assert JobArrays([new], rows[1:2]).left.tolist() == [300.0]
    assert np.isnan(JobArrays([runs, stranger], [rows[0], rows[2]]).left).tolist() == [False, True]


SIZES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=12)


def prices(sizes: list[float], elasticity: float, weight: float = 1.0) -> list[float]:
    found = market.work_prices(np.array(sizes), elasticity, np.full(len(sizes), weight))
    return [float(price) for price in found]


def test_the_price_of_a_single_job_is_one():
    assert prices([7.0], 0.5) == [1.0]


@given(SIZES, st.floats(-1.0, 2.0))
def test_a_shorter_job_never_has_a_lower_price(sizes, elasticity):
    found = prices(sizes, elasticity)
    ordered = [found[n] for n in sorted(range(len(sizes)), key=lambda n: -sizes[n])]
    assert ordered == sorted(ordered)


def test_unscalable_work_has_equal_prices():
    assert max(prices([100.0, 10.0, 1.0], 0.0)) < 1.2


@given(SIZES)
def test_prices_are_proportional_to_weights_for_equal_ranks(sizes):
    assert prices(sizes, 0.5, 2.0) == pytest.approx([2 * p for p in prices(sizes, 0.5)])


def flow_time(sizes, shares_of, p, cores):
    """Return the sum of the completion times if cores are shared again at the end of each job."""
    left, now, total = dict(enumerate(sizes)), 0.0, 0.0
    while left:
        speed = {
            n: (s * cores) ** p
            for n, s in zip(left, shares_of(list(left.values()), p), strict=True)
        }
        step = min(left[n] / speed[n] for n in left if speed[n] > 0)
        now += step
        left = {n: x - speed[n] * step for n, x in left.items()}
        done = [n for n, x in left.items() if x <= 1e-9 * sizes[n]]
        total += now * len(done)
        for n in done:
            left.pop(n)
    return total


def by_price(sizes, p):
    """Return the shares at which price x marginal speedup is equal: share ~ price^(1/(1-p))."""
    parts = [x ** (1.0 / (1.0 - p)) for x in prices(sizes, p)]
    return [x / sum(parts) for x in parts]


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_prices_give_the_optimal_total_time(p):
    sizes, cores = [9.0, 5.0, 2.0, 1.0], 16.0
    best = flow_time(sizes, by_price, p, cores)
    assert best == pytest.approx(
        sum(x * price for x, price in zip(sizes, prices(sizes, p), strict=True)) / cores**p
    )
    for order in permutations(range(4)):

        def shuffled(left, p, order=order):
            shares = by_price(left, p)
            chosen = [n for n in order if n < len(left)]
            return [shares[n] for n in chosen]

        assert best <= flow_time(sizes, shuffled, p, cores) * (1 + 1e-9)
