"""Tests of the table of simulated runs at several widths of the terminal."""

from __future__ import annotations

from copy import copy
from statistics import fmean

import pytest
from msgspec.structs import replace

from services.allocator.settings import Rules
from services.console.report.runs import (
    SHOWN,
    UNLIKE,
    YIELDING,
    describe_different_jobs,
    runs_table,
)
from services.whatif.simulator.csv_files import read_jobs, read_surfaces
from services.whatif.simulator.outcome import Run
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import Scenario, read_cluster
from tests.cli.test_simulate import CLUSTER, JOBS, SURFACES
from tests.console.top.drawn import shown

LONG = "mine_of_the_second_season:fewest_first"


@pytest.fixture(scope="module")
def done() -> Run:
    known = read_surfaces(SURFACES)
    world = Scenario(jobs=read_jobs(JOBS, known), cluster=read_cluster(CLUSTER), surfaces=known)
    return simulate(world, Rules(policy="static"), 0, lambda: 0.0)


@pytest.mark.parametrize("width", [80, 100, 110, 120, 200])
@pytest.mark.parametrize("name", ["static", "mine:fewest_first", LONG])
def test_a_long_name_is_wrapped_and_no_heading_is_cut(done: Run, width: int, name: str) -> None:
    done = replace(done, policy=name)
    heading, _, *rows = shown(runs_table([done], width), width)
    column = heading.index("MEAN s")

    assert "".join(row[:column].strip() for row in rows) == name and "6 of 6" in rows[0]
    assert (
        all(each in heading for each in SHOWN.values() if each not in YIELDING)
        and "…" not in heading + rows[0]
    )
    assert max(map(len, (heading, *rows))) <= width
    assert width < 110 or all(each in heading for each in SHOWN.values())


def without(run: Run, *jobs: str) -> Run:
    records = [copy(record) for record in run.records]
    for record in records:
        record.finished_s = None if record.work.job in jobs else record.finished_s
    return replace(run, policy="recorded", records=tuple(records))


def test_if_rows_completed_different_jobs_the_mean_of_the_common_ones_is_shown(done: Run) -> None:
    assert (
        describe_different_jobs([])
        == describe_different_jobs([done])
        == describe_different_jobs([done, replace(done, policy="weir")])
        == ""
    )
    first, *rest = done.records
    most = [record.completion_s or 0.0 for record in rest]
    said = describe_different_jobs([without(done, first.work.job), done])

    mean = f"{fmean(most):,.0f}"
    assert (
        said == f"{UNLIKE}; of the 5 jobs that every row completed, MEAN s: recorded {mean}, static"
        f" {mean}"
    )
    assert (
        describe_different_jobs(
            [without(done, *(record.work.job for record in done.records)), done]
        )
        == UNLIKE
    )
