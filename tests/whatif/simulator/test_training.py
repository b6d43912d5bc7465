"""Tests of one simulated job between two events: its progress and its reports."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from services.whatif.simulator.scenario import Curve, Work
from services.whatif.simulator.training import Training
from shared.messages import AllocationDecided, Resources, Role, TaskPlan
from tests.whatif.simulator.worlds import scenario, span, work

ROLES: tuple[Role, ...] = ("chief", "ps", "worker")


def training(
    job: Work | None = None, noise: float = 0.0, seed: int = 0, uid: int = 1, **fields: Any
) -> Training:
    job = job or work()
    losses = {job.model: fields["curve"]} if "curve" in fields else {}
    return Training(job, uid, scenario(job, noise=noise, losses=losses), seed)


def decided(
    ps: int = 1, workers: int = 1, generation: int = 1, cpu: float = 1.0, batch: int = 64
) -> AllocationDecided:
    roles = [ROLES[0]] + [ROLES[1]] * ps + [ROLES[2]] * workers
    tasks = [
        TaskPlan(
            role=role,
            index=0,
            serial=serial,
            node="n1",
            resources=Resources(cpu=0 if role == "chief" else cpu),
        )
        for serial, role in enumerate(roles)
    ]
    return AllocationDecided(
        job="one",
        uid=1,
        generation=generation,
        revision=generation,
        request=work().request(),
        tasks=tuple(tasks),
        batch=batch,
        reason="-",
    )


def test_training_progresses_at_the_surfaces_speed() -> None:
    one = training()
    one.start_training(decided(1, 2), 10.0)
    one.advance(20.0)
    assert one.samples == pytest.approx(1_800.0)
    assert one.ends_s() == pytest.approx(10.0 + 10_000 / 180.0)


def test_a_stopped_job_makes_no_progress() -> None:
    one = training()
    one.start_training(decided(), 0.0)
    one.stop_training(10.0)
    one.stop_training(15.0)
    one.advance(20.0)
    assert one.samples == pytest.approx(1_000.0)
    assert (one.stopped_s, one.ends_s()) == (10.0, float("inf"))


def test_a_pause_is_reported_only_between_generations() -> None:
    one = training()
    assert one.resume_generation(decided(), 10.0).pause_s is None
    one.stop_training(20.0)
    told = one.resume_generation(decided(1, 2, generation=2), 50.0)
    assert (told.pause_s, told.previous, told.generation, told.samples) == (30.0, 1, 2, 1_000)
    one.stop_training(60.0)
    one.lost.add(2)
    assert one.resume_generation(decided(generation=3), 90.0).pause_s is None


def test_half_the_cpu_halves_the_speed_and_more_than_the_request_gains_nothing() -> None:
    one = training()
    one.start_training(decided(cpu=0.5), 0.0)
    assert one.speed == pytest.approx(50.0)
    one.start_training(decided(cpu=4.0), 0.0)
    assert one.speed == pytest.approx(100.0)
    assert [usage.cpu for usage in one.usage] == [0.0, 1.0, 1.0]


def test_a_batch_above_the_devices_limit_gains_nothing() -> None:
    ring = work(
        model="ring",
        ps=span(0, least=0),
        workers=span(1, most=4),
        device_batch_max=64,
        worker_cpu=0.0,
    )
    one = training(ring)
    one.start_training(decided(0, 1, batch=128), 0.0)
    assert one.speed == pytest.approx(50.0)
    one.start_training(decided(0, 2, batch=128), 0.0)
    assert one.speed == pytest.approx(1.5 * 95.0)


def test_a_report_has_the_mean_speed_since_the_last_one() -> None:
    one = training(curve=Curve([(0, 2.0), (10_000, 1.0)]))
    one.start_training(decided(), 0.0)
    first = one.report(decided(), 10.0)
    assert (first.samples, first.total_samples) == (1_000, 10_000)
    assert (first.samples_per_second, first.loss) == pytest.approx((100.0, 1.9))
    assert first.step == 1_000 // 64 and len(first.usage) == 3
    assert one.report(decided(), 10.001).step == first.step + 1


def test_noise_has_the_true_speed_as_its_mean() -> None:
    one = training(work(samples=10**9), noise=0.1)
    one.start_training(decided(), 0.0)
    told = [one.report(decided(), float(second)).samples_per_second for second in range(1, 2_001)]
    assert fmean(told) == pytest.approx(100.0, rel=0.01)
    assert one.samples == pytest.approx(sum(told))
    assert 5.0 < fmean(abs(speed - 100.0) for speed in told) < 11.0


def test_noise_is_a_function_of_job_and_seed() -> None:
    def told(**fields: Any) -> list[float]:
        one = training(noise=0.1, **fields)
        one.start_training(decided(), 0.0)
        return [one.report(decided(), float(second)).samples_per_second for second in range(1, 5)]

    assert told() == told()
    assert told() != told(uid=2) and told() != told(seed=1)


def test_a_pod_is_found_in_the_newest_generation_that_has_it() -> None:
    one = training()
    one.start_training(decided(1, 1), 0.0)
    one.comes = decided(2, 0, generation=2)
    task, generation, wanted = one.task_of("one-ps-1")
    assert (task.serial, generation, wanted) == (1, 2, True)
    assert one.task_of("one-worker-2")[1:] == (1, False)
