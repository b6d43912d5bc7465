"""Tests of the rows of jobs: the policy decides the same with stored rows as without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.models.programs import program_fits, program_key
from services.allocator.placement.amounts import total_of
from services.allocator.policies.contract import JobSnapshot, Node, Observed, Size, Target
from services.allocator.policies.registry import POLICIES
from services.allocator.policies.weir.job_rows import (
    JobRow,
    Numbers,
    fit_rows,
    measured_speed,
    rows_of,
)
from services.allocator.policies.weir.policy import largest_node, two_digits, weir
from services.allocator.policies.weir.staircase import COLUMNS, Config
from shared.messages import ProgressReported, Resources, RoleResources, TaskPlan
from tests.allocator.builders import request, span
from tests.bench.decide_world import RULES, Cluster, with_quotas

SIZES = RoleResources(chief=Resources(cpu=0.5), ps=Resources(cpu=1.0), worker=Resources(cpu=2.0))
THERE = Resources(cpu=80.0, memory_gib=64.0)
NODE = Resources(cpu=16.0, memory_gib=64.0)
SEEN = (Observed(1, 1, 32, 100.0), Observed(1, 2, 32, 190.0))


class Question(NamedTuple):
    """The arguments of a call of the policy."""

    cluster: Sequence[Node]
    jobs: Sequence[JobSnapshot]
    now: float

    def with_rows(self, rows: Sequence[JobRow]) -> list[Target]:
        jobs = [replace(job, model=row) for job, row in zip(self.jobs, rows, strict=True)]
        return weir(self.cluster, jobs, self.now)

    def without_rows(self) -> list[Target]:
        return weir(self.cluster, self.jobs, self.now)

    def there(self) -> Resources:
        """Return what is free on the nodes or held by the jobs."""
        held = [task.resources for job in self.jobs for task in job.tasks]
        return two_digits(total_of([node.free for node in self.cluster] + held))

    def rows(self) -> list[JobRow]:
        return fit_rows(self.jobs, self.there(), largest_node(self.cluster))


@pytest.fixture(params=range(6))
def questions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """Return the policy's calls in a random cluster in which jobs arrive, run and report."""
    found: list[Question] = []

    def recorded(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
        found.append(Question(cluster, [replace(job, model=None) for job in jobs], now))
        return weir(cluster, jobs, now)

    monkeypatch.setitem(POLICIES, "weir", recorded)
    nodes, jobs = ((4, 12), (12, 8), (3, 30))[request.param % 3]
    there = Cluster(
        nodes,
        jobs,
        request.param,
        alike=4,
        rules=with_quotas(nodes) if request.param > 2 else RULES,
    )
    for first in range(0, jobs, 4):
        there.accept(first, first + 4)
        there.story.decide(after_s=60.0)
        decided = there.story.decisions
        there.report()
        there.story.decide(after_s=1.0)  # while the decisions are in flight
        there.come_true(decided)
        there.come_true(there.story.decisions)
    assert {job.size is None for asked in found for job in asked.jobs} == {True, False}
    assert any(job.busy for asked in found for job in asked.jobs)
    return found


def told(wants: Sequence[Target]) -> Iterator[Any]:
    """Yield each target, and the same target with one worker less."""
    for want in wants:
        less = want
        if want.describe_partial and want.workers > 1:
            less = want.shrunk_to(Size(want.ps, want.workers - 1), want.batch, "so")
        yield msgspec.to_builtins(
            [replace(want, describe_partial=None), replace(less, describe_partial=None)]
        )


def test_stored_rows_give_the_same_targets(questions: list[Question]) -> None:
    for asked in questions:
        assert [*told(asked.with_rows(asked.rows()))] == [*told(asked.without_rows())]


def test_rows_round_trip(questions: list[Question]) -> None:
    for asked in questions:
        rows = asked.rows()
        read = msgspec.json.decode(msgspec.json.encode(rows), type=list[JobRow])
        for one, other in zip(read, rows, strict=True):
            assert (one.numbers, one.steps, one.untried) == (
                other.numbers,
                other.steps,
                other.untried,
            )
            assert (one.there, one.node, one.program) == (other.there, other.node, other.program)
        assert [*told(asked.with_rows(read))] == [*told(asked.without_rows())]


def test_a_row_depends_only_on_its_job_and_program_model(questions: list[Question]) -> None:
    """A stored row stays valid when other jobs change; only the rounding of sums differs."""
    asked = questions[-1]
    there, node = asked.there(), largest_node(asked.cluster)
    fits = program_fits(asked.jobs)
    alone = [rows_of([job], [fits[program_key(job)]], there, node)[0] for job in asked.jobs]
    for one, beside in zip(alone, asked.rows(), strict=True):
        for name in ("numbers", "steps", "untried"):
            own, other = (np.frombuffer(getattr(row, name)) for row in (one, beside))
            np.testing.assert_allclose(own, other, rtol=1e-9)


@pytest.mark.parametrize("lacking", [0, 1])
def test_missing_or_outdated_rows_rebuild_all(lacking: int) -> None:
    """The rows of the other jobs are of a cluster that is too small for the jobs."""
    jobs = [running("one", 2), running("two", 1)]
    asked = Question([Node("n", Resources(cpu=16.0, memory_gib=64.0), NODE)], jobs, 0.0)
    rows: list[JobRow | None] = [*fit_rows(jobs, Resources(cpu=8.0, memory_gib=64.0), NODE)]
    for other in (None, asked.rows()[lacking]):
        rows[lacking] = other
        given = [replace(job, model=row) for job, row in zip(jobs, rows, strict=True)]
        assert [*told(weir(asked.cluster, given, 0.0))] == [*told(asked.without_rows())]


# ---------------------------------------------------------------- contents of a row


def waiting(name: str) -> JobSnapshot:
    asked = request(job=name, ps=span(1, 1, 2), workers=span(1, 1, 8), batch=span(32, 32))
    asked = replace(asked, resources=SIZES, epochs=4, priority=1)
    return JobSnapshot(key=f"default.{name}", request=asked, sizes=SIZES, submitted_s=7.0)


def running(name: str, workers: int, seen: tuple[Observed, ...] = SEEN) -> JobSnapshot:
    report = ProgressReported(
        job=name, uid=1, step=1, epoch=0, samples=1000, total_samples=8000, samples_per_second=100.0
    )
    roles = ("chief", SIZES.chief), ("ps", SIZES.ps), *[("worker", SIZES.worker)] * workers
    tasks = [
        TaskPlan(role=role, index=0, serial=serial, node="n", resources=has)
        for serial, (role, has) in enumerate(roles)
    ]
    had = replace(waiting(name), size=Size(1, workers), batch=32, tasks=tuple(tasks), since_s=9.0)
    return replace(had, progress=report, observed=seen, pause_s=3.0)


def row(job: JobSnapshot, there: Resources = THERE) -> tuple[Numbers, list[Config], list[Config]]:
    """Return a job's numbers, its staircase, and the sizes that it may explore."""
    (found,) = fit_rows([job], there, NODE)
    numbers = np.frombuffer(found.numbers).tolist()
    steps, untried = (
        np.frombuffer(table).reshape(-1, COLUMNS).tolist() for table in (found.steps, found.untried)
    )
    return (
        Numbers(*numbers),
        [Config.of_row(step) for step in steps],
        [Config.of_row(size) for size in untried],
    )


def test_a_row_has_the_jobs_size_and_progress() -> None:
    has, steps, _ = row(running("one", 2))
    assert (has.waits, has.busy, has.heard) == (0, 0, 1)
    assert (has.asked_s, has.since_s, has.pause_s) == (7.0, 9.0, 3.0)
    assert (has.samples, has.left, has.epoch) == (1000, 7000, 2000), "of four epochs"
    assert (has.ps, has.workers, has.batch) == (1, 2, 32)
    assert (has.held_cpu, has.held_gib, has.held_gpu) == (5.5, 0.0, 0.0)
    assert (has.spare_cpu, has.spare_gib, has.spare_gpu) == (2.0, 0.0, 0.0), (
        "80 cores are 40 workers"
    )
    assert (has.speed, has.cost) == (190.0, 5.5 / 80.0)
    assert has.best == max(step.speed / step.cost for step in steps)
    assert has.weight > row(replace(running("one", 2), request=request()))[0].weight


def test_unknown_values_of_a_waiting_job_are_nan() -> None:
    has, steps, untried = row(waiting("one"))
    assert (has.waits, has.heard, has.speed, has.cost, has.held_cpu) == (1, 0, 0.0, 0.0, 0.0)
    assert np.isnan([has.left, has.epoch, has.pause_s]).all()
    assert steps[0].size == Size(1, 1) and not untried


def test_the_current_size_is_a_step_with_its_measured_speed() -> None:
    """Three workers are a step only of the job that has them: four are much faster."""
    seen = (*SEEN, Observed(1, 3, 32, 200.0), Observed(1, 4, 32, 390.0))
    has, steps, _ = row(running("one", 3, seen))
    assert (has.speed, has.heard) == (200.0, 1)
    assert [step.speed for step in steps if step.size == Size(1, 3)] == [200.0]
    assert Size(1, 3) not in [step.size for step in row(running("one", 2, seen))[1]]
    elsewhere = (*SEEN, Observed(1, 4, 32, 390.0))
    has, steps, _ = row(running("one", 3, elsewhere))
    assert has.heard == 0 and 190.0 < has.speed < 390.0, "by the model"


def test_a_job_larger_than_the_cluster_has_no_step() -> None:
    has, steps, _ = row(waiting("one"), Resources(cpu=3.0, memory_gib=1.0))
    assert not steps and has.best == 0.0


def test_explorable_sizes_are_larger_unseen_and_sorted_by_speed() -> None:
    seen = (*SEEN, Observed(1, 4, 32, 300.0))
    _, _, untried = row(running("one", 2, seen))
    assert len(untried) > 2
    assert all(size.ps >= 1 and size.workers >= 2 and size.size != Size(1, 2) for size in untried)
    assert Size(1, 4) not in [size.size for size in untried]
    speeds = [size.speed for size in untried]
    assert speeds == sorted(speeds, reverse=True) and min(speeds) >= 190.0
    assert all(size.cpu == 0.5 + size.ps + 2.0 * size.workers for size in untried)


def test_a_measured_speed_matches_the_number_of_nodes() -> None:
    """The job's worker is on one node. The last observation that matches counts."""
    alone, apart, unknown = (
        Observed(1, 1, 32, speed, nodes=on) for speed, on in ((200.0, 1), (90.0, 2), (150.0, None))
    )
    for seen, speed in (
        ((alone, apart), 200.0),
        ((apart,), None),
        ((alone, unknown, apart), 150.0),
    ):
        assert measured_speed(running("one", 1, seen), Size(1, 1)) == speed
    assert measured_speed(running("one", 1, (alone,)), Size(1, 2)) is None
