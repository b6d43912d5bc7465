"""Tests of the policy that chooses the devices and the batch size of a job together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, Node, Observed, Size, Target
from services.allocator.policies.elastic_batch.policy import (
    EQUAL,
    Options,
    Pick,
    ScaleModel,
    autoscale,
    elastic_batch,
    fit_scale_models,
    optimise,
    trim_options,
)
from services.allocator.policies.elastic_batch.scalability import Limits, Table, Timing, scale_table
from shared.messages import Resources, RoleResources, Span, TaskPlan
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
)

NONE = -math.inf
SCALES = st.one_of(st.just(NONE), st.floats(-2.0, 9.0), st.integers(0, 3).map(float))
TABLES = st.lists(st.lists(SCALES, min_size=1, max_size=5), min_size=1, max_size=4)


def table(scales: Sequence[float]) -> Table:
    return Table(np.array(scales, dtype=float), np.arange(1, len(scales) + 1) * 10)


def literal(tables: Sequence[Sequence[float]], devices: int) -> float:
    """Return P(J, K) as in the paper, computed entry by entry."""
    best = [0.0] * (devices + 1)
    for scales in tables:
        last = range(len(scales))
        best = [
            max([NONE, *(scales[g] + best[k - g - 1] for g in last if g < k)])
            for k in range(devices + 1)
        ]
    return best[devices]


def brute(tables: Sequence[Sequence[float]], devices: int) -> float:
    """Return the optimum over all combinations."""
    picks = itertools.product(*(range(len(scales)) for scales in tables))
    fitting = (p for p in picks if sum(p) + len(p) <= devices)
    return max(
        (sum(scales[g] for scales, g in zip(tables, p, strict=True)) for p in fitting), default=NONE
    )


# ---------------------------------------------------------------- the algorithm


@settings(max_examples=300, deadline=None)
@given(TABLES, st.integers(1, 12))
def test_the_dynamic_programme_is_optimal(tables, devices):
    able = [scales for scales in tables if max(scales) > NONE]
    picks = [p for p in autoscale([table(s) for s in able], devices) if p]
    kept = able[: len(picks)]
    assert sum(p.devices for p in picks) <= devices
    found = sum(scales[p.devices - 1] for scales, p in zip(kept, picks, strict=True))
    close = EQUAL * (1 + len(kept))  # smaller differences of sums count as equal
    assert (
        found
        == pytest.approx(brute(kept, devices), abs=close)
        == pytest.approx(literal(kept, devices), abs=close)
    )


@settings(max_examples=300, deadline=None)
@given(TABLES, st.integers(1, 12))
def test_the_latest_jobs_are_dropped_until_the_programme_is_feasible(tables, devices):
    tentative = [scales for scales in tables if max(scales) > NONE]
    while tentative and literal(tentative, devices) == NONE:
        tentative.pop()
    options = [_options(scales) for scales in tables if max(scales) > NONE]
    assert trim_options(options, devices) == len(tentative)


def _options(scales: Sequence[float]) -> Options:
    there = np.flatnonzero(np.isfinite(scales))
    return Options(there + 1, np.array(scales)[there])


def test_a_batch_too_large_for_one_device_needs_several():
    needs_two = table([NONE, 1.5, 1.8])
    assert autoscale([needs_two, needs_two, table([1.0])], 4) == [Pick(2, 20), Pick(2, 20), None]
    assert autoscale([needs_two, needs_two, table([1.0])], 5)[2] == Pick(1, 10)


def test_a_job_without_a_feasible_option_blocks_no_other():
    assert autoscale([table([NONE, NONE]), table([1.0])], 1) == [None, Pick(1, 10)]


def test_among_equal_sums_a_job_keeps_its_devices():
    same = table([1.0, 2.0, 3.0])
    assert [p.devices for p in autoscale([same, same], 4, held=[3, 1]) if p] == [3, 1]
    assert [p.devices for p in autoscale([same, same], 4, held=[1, 3]) if p] == [1, 3]


def test_no_job_gets_a_device_that_slows_it_down():
    assert autoscale([table([1.0, 1.4, 1.2, 0.9])], 100) == [Pick(2, 20)]


def test_an_infeasible_programme_is_an_error():
    with pytest.raises(ValueError, match="2 jobs need 4 devices, there are 3"):
        optimise([_options([NONE, 1.0])] * 2, 3)


def test_devices_and_batches_grow_when_load_falls():
    timing = Timing(step_s=0.1, sample_s=0.01, ring_s=0.2, hop_s=0.001)
    one = scale_table(
        timing.rate, Limits(batch_min=32, batch_max=512, device_batch_max=32, devices_max=16)
    )
    assert autoscale([one], 16) == [Pick(16, 512)]
    assert autoscale([one] * 16, 16) == [Pick(1, 32)] * 16


# ---------------------------------------------------------------- the policy

GPU = Resources(cpu=1, gpu=1)


def ringed(job: str = "a", at: float = 0.0, **fields: Any) -> JobSnapshot:
    """Return a waiting job without ps, with a device for each worker."""
    usual = {
        "batch": Span(start=32, min=32, max=512),
        "device_batch_max": 32,
        "workers": span(1, most=16),
    }
    asked = replace(request(job, **(usual | fields)), ps=Span(start=0, min=0, max=0))
    sizes = RoleResources(chief=Resources(), ps=Resources(), worker=GPU)
    return JobSnapshot(key=f"default.{job}", request=asked, sizes=sizes, submitted_s=at)


def served(job: str = "a", at: float = 0.0, **fields: Any) -> JobSnapshot:
    """Return a waiting job with a ps for every two workers."""
    asked = request(job, **({"ps": span(1, most=8), "workers": span(2, least=1, most=16)} | fields))
    sizes = RoleResources(chief=Resources(cpu=0.5), ps=Resources(cpu=1), worker=Resources(cpu=2))
    return JobSnapshot(key=f"default.{job}", request=asked, sizes=sizes, submitted_s=at)


def running(
    job: JobSnapshot, workers: int, batch: int, node: str = "n0", **fields: Any
) -> JobSnapshot:
    ps = -(-workers * job.start.ps // job.start.workers)
    roles = ["chief", *["ps"] * ps, *["worker"] * workers]
    plans = (
        TaskPlan(role=role, index=i, serial=i, node=node, resources=getattr(job.sizes, role))  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    )
    return replace(job, size=Size(ps, workers), batch=batch, tasks=tuple(plans), **fields)


def nodes(gpu: int = 0, cpu: float = 1000, count: int = 1) -> list[Node]:
    return [Node(f"n{i}", Resources(cpu=cpu, memory_gib=1000, gpu=gpu)) for i in range(count)]


def wanted(wants: Sequence[Target]) -> dict[str, tuple[int, int, int]]:
    return {w.job.removeprefix("default."): (w.ps, w.workers, w.batch) for w in wants}


def test_a_stored_model_gives_the_same_size():
    seen = tuple(Observed(1, k, 32, 32.0 * k / (0.4 + 0.1 * k)) for k in (1, 2, 4))
    jobs = [
        running(served("a"), 2, 32, observed=seen),
        served("b"),
        running(ringed("c"), 1, 32, observed=seen[:1]),
    ]
    models = fit_scale_models(jobs)
    assert msgspec.json.decode(msgspec.json.encode(models), type=list[ScaleModel]) == models
    carrying = [replace(job, model=model) for job, model in zip(jobs, models, strict=True)]
    there = nodes(cpu=20, gpu=4)
    assert elastic_batch(there, [carrying[0], jobs[1], carrying[2]], 0.0) == elastic_batch(
        there, jobs, 0.0
    )


def test_a_job_with_nan_timing_is_skipped():
    (model,) = fit_scale_models([served("broken")])
    unknown = np.full(len(model.table.scales), math.nan)
    broken = replace(
        served("broken"),
        model=ScaleModel(Timing(*[math.nan] * 4), unknown.tobytes(), model.batches),
    )
    told = wanted(elastic_batch(nodes(cpu=20), [broken, served("b", at=1)], 0.0))
    assert told == wanted(elastic_batch(nodes(cpu=20), [served("b", at=1)], 0.0))


def test_among_equally_fast_batches_the_smallest_is_chosen():
    """A step has no fixed cost here, so all batches are equally fast."""
    timing = Timing(step_s=0.0, sample_s=0.1 / 3, ring_s=0.0, hop_s=0.0)
    table = scale_table(
        timing.rate, Limits(batch_min=10, batch_max=512, device_batch_max=512, devices_max=4)
    )
    assert table.batches.tolist() == [10, 10, 12, 12]


def test_one_job_gets_all_devices_and_many_jobs_one_each():
    assert wanted(elastic_batch(nodes(gpu=4, count=4), [ringed()], 0.0)) == {"a": (0, 16, 512)}
    crowd = [ringed(f"j{i}", at=i) for i in range(20)]
    assert wanted(elastic_batch(nodes(gpu=4, count=4), crowd, 0.0)) == {
        f"j{i}": (0, 1, 32) for i in range(16)
    }


def test_a_global_batch_is_divided_among_the_workers():
    """It stays as requested until a speed was observed, and the workers divide it."""
    for consistency, batch in (("global-batch", span(32, 32, 256)), ("exact", span(45, 45, 45))):
        new = served(consistency=consistency, batch=batch)
        (found,) = elastic_batch(nodes(), [new], 0.0)
        assert found.batch == batch.start
        assert found.workers > 1 and batch.start % found.workers == 0


def test_running_jobs_shrink_for_new_ones():
    old = running(ringed(), workers=16, batch=512)
    told = wanted(elastic_batch(nodes(gpu=0), [old, ringed("b", at=1)], 0.0))
    assert told == {"a": (0, 8, 256), "b": (0, 8, 256)}


def test_a_job_in_flight_keeps_its_devices_without_a_target():
    flying = running(ringed(), workers=12, batch=384, busy=True)
    assert wanted(elastic_batch(nodes(gpu=4), [flying, ringed("b", at=1)], 0.0)) == {
        "b": (0, 4, 128)
    }


def test_ps_keep_their_starting_ratio_and_are_counted():
    assert wanted(elastic_batch(nodes(cpu=13.5), [served()], 0.0)) == {"a": (3, 5, 32)}
    assert wanted(elastic_batch(nodes(cpu=13), [served()], 0.0)) == {"a": (2, 4, 32)}


def test_with_ps_the_batch_changes_only_after_a_measured_speed():
    asked = served(batch=Span(start=32, min=16, max=64))
    assert wanted(elastic_batch(nodes(cpu=13.5), [asked], 0.0)) == {"a": (3, 5, 32)}
    unheard = running(asked, workers=5, batch=32)
    assert wanted(elastic_batch(nodes(), [unheard], 0.0))["a"][2] == 32
    (want,) = elastic_batch(
        nodes(cpu=0), [replace(unheard, observed=(Observed(3, 5, 32, 1000.0),))], 0.0
    )
    assert (
        (want.workers, want.batch) == (5, 64) and want.speedup is not None and want.speedup > 1.05
    )


def test_a_small_gain_changes_nothing():
    slow = tuple(Observed(0, k, 32 * k, 100.0 * (1 + 0.003 * k)) for k in (1, 4, 8, 12, 15))
    old = running(ringed(), workers=15, batch=480, observed=slow)
    (want,) = elastic_batch(nodes(gpu=1), [old], 0.0)
    assert (want.workers, want.batch) == (15, 480) and want.reason.startswith("no job waits")


def test_devices_that_slow_a_job_down_are_returned():
    slow = tuple(Observed(0, k, 32 * k, 3200.0 / k) for k in (1, 2, 4, 8))
    (want,) = elastic_batch(
        nodes(gpu=8), [running(ringed(), workers=8, batch=256, observed=slow)], 0.0
    )
    assert want.workers == 1


def test_running_jobs_come_first_then_priority_then_arrival():
    jobs = [
        ringed("late", at=5, priority=1),
        ringed("early", at=1),
        running(ringed("old", at=9), 1, 32),
    ]
    assert set(wanted(elastic_batch(nodes(gpu=1), jobs, 0.0))) == {"old", "late"}


def test_unschedulable_nodes_give_nothing_new():
    closed = [Node("n0", Resources(gpu=8), open=False)]
    assert elastic_batch(closed, [ringed()], 0.0) == []
    assert wanted(elastic_batch(closed, [running(ringed(), 2, 64)], 0.0)) == {"a": (0, 2, 64)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=8),
    st.integers(0, 12),
    st.integers(0, 40),
)
def test_grants_never_exceed_capacity_and_bounds_hold(kinds, gpus, cores):
    jobs = []
    for i, (on_gpu, workers) in enumerate(kinds):
        job = (ringed if on_gpu else served)(f"j{i}", at=i)
        jobs.append(running(job, workers, 32 * workers if on_gpu else 32) if workers else job)
    cluster = [Node("n0", Resources(cpu=cores, gpu=gpus))]
    wants = {w.job: w for w in elastic_batch(cluster, jobs, 0.0)}
    gpu = sum(
        w.workers for key, w in wants.items() for j in jobs if j.key == key and j.start.ps == 0
    )
    assert gpu <= gpus + sum(t.resources.gpu for j in jobs for t in j.tasks)
    assert all(j.key in wants for j in jobs if j.size)
    assert all(1 <= w.workers <= 16 for w in wants.values())


def test_the_allocator_grants_the_solution_and_takes_it_back_for_a_new_job():
    flexible = {
        "policy": "elastic-batch",
        "batch": Span(start=32, min=16, max=64),
        "ps": span(1),
        "workers": span(1, most=8),
    }
    story = Story().hear(node(cpu=8), accepted(request("first", **flexible)))
    decision = story.decided()
    assert (size(decision), decision.batch) == ((1, 6), 32)
    story.hear(resumed(1, job="first"), accepted(request("second", **flexible), uid=2))
    decision = story.decided()
    assert (decision.job, size(decision)) == ("first", (1, 2))


def test_a_batch_change_is_a_generation_with_the_same_tasks():
    asked = request(policy="elastic-batch", batch=span(32, most=64), ps=span(1), workers=span(1))
    story = Story(replace(AT_ONCE, window_s=2.0, max_delay_s=30.0)).hear(
        node(cpu=3), accepted(asked)
    )
    first = story.decided()
    assert (size(first), first.batch) == ((1, 1), 32)
    story.hear(node(cpu=3, free=0, own=own("mnist", *first.tasks)), resumed(1))
    assert story.hear(progress(1, done=100, total=100_000, speed=10)).decide() == ()
    assert story.why().startswith("will have 1 ps and 1 worker with batch 64, if still wanted: ")
    changed = story.decided(after_s=3.0)
    assert (changed.tasks, changed.batch, changed.generation) == (first.tasks, 64, 2)
