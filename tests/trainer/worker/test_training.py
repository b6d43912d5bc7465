"""Tests of real training in real processes: hand-overs apply every example once.

The ps itself counts how often each example is applied.
"""

from __future__ import annotations

import math
import random
import re
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shared.bus.bus import Bus
from shared.messages import (
    NOT_ENOUGH_MEMORY,
    CheckpointRule,
    CheckpointSaved,
    GenerationPrepared,
    JobFinished,
    ProgressReported,
    Span,
    TrainingResumed,
)
from tests.conftest import NatsServer, connected
from tests.trainer.fleet import Fleet

EXAMPLES, BATCH = 250, 16
UPDATES = math.ceil(EXAMPLES / BATCH)
"""Updates of an epoch in one process."""
SELDOM = CheckpointRule(every_s=1000.0)  # none is due, however slow the machine is
STEADY_NOISE = 10.3
"""The gradient noise scale of `steady.py`, in examples."""
Start = Callable[..., Fleet]


@pytest.fixture
def start(bus: Bus, nats_url: str, tmp_path: Path) -> Start:
    def made(program: str = "counting.py", **fields: Any) -> Fleet:
        return Fleet(bus, nats_url, tmp_path / "fleet", program, **fields)

    return made


def counted_once(fleet: Fleet, finished: JobFinished) -> None:
    epochs = fleet.request.epochs
    assert finished.outcome == "succeeded", finished.cause
    assert finished.counted == finished.samples == EXAMPLES * epochs
    read = fleet.counts()
    assert read["counts"] == [epochs] * EXAMPLES
    assert read["applied"] == EXAMPLES * epochs


async def test_every_example_counts_once_per_epoch_across_resizes(
    start: Start,
) -> None:
    chance = random.Random(20)
    async with start(epochs=16, warm=False) as fleet:
        sizes = [(1, 1), (2, 2), (1, 2), (2, 1)]
        for number, (ps, workers) in enumerate(sizes, start=1):
            fact = await fleet.generation(
                number, ps=ps, workers=workers, previous=number - 1 or None
            )
            assert (fact.pause_s is not None) == (number > 1)
            await fleet.steps(chance.randint(3, 12), generation=number)
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())
        resumed = {m.generation: m for m in fleet.said if isinstance(m, TrainingResumed)}
        drained = {
            m.generation: m for m in fleet.said if isinstance(m, CheckpointSaved) and m.final
        }
        for number in (2, 3, 4):
            assert resumed[number].samples >= drained[number - 1].samples > 0
            assert resumed[number].phases.restore_s > 0
        stale = staleness(fleet)
        assert stale[1] == stale[4] == 0, "one worker reads what it has written"


async def test_what_a_program_makes_when_it_is_imported_works_across_a_resize(start: Start) -> None:
    async with start("adapted.py", epochs=40, consistency="global-batch") as fleet:
        await fleet.generation(1, ps=1, workers=1)
        await fleet.generation(2, ps=2, workers=2, previous=1)
        fleet.pace(0)

        finished = await fleet.finished()

        assert finished.outcome == "succeeded", finished.cause
        assert finished.counted == 40 * 96 and 0 < finished.metrics["loss"] < 1


async def test_gradients_of_two_workers_are_stale(start: Start) -> None:
    async with start(epochs=60) as fleet:
        fleet.pace(0)
        await fleet.generation(1, ps=1, workers=2)
        counted_once(fleet, await fleet.finished())
        assert 0 < staleness(fleet)[1] < 60 * UPDATES


async def test_examples_of_dropped_gradients_are_applied_once_across_resizes(
    start: Start,
) -> None:
    """The counts are weights, so an update that is dropped in part or counted twice shows."""
    limited: dict[str, Any] = {"max_staleness": 1, "rate_with_workers": "keep"}
    async with start("stale.py", epochs=20, **limited) as fleet:
        await fleet.generation(1, ps=2, workers=2)
        await fleet.steps(10, 1)
        await fleet.generation(2, ps=1, workers=3, previous=1)
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())
        reports = [m for m in fleet.said if isinstance(m, ProgressReported)]
        dropped = sum(m.staleness.dropped for m in reports if m.staleness)
        assert dropped > 0


async def test_workers_make_updates_together_as_one_process_across_resizes(start: Start) -> None:
    epochs = 12
    async with start(epochs=epochs, consistency="global-batch") as fleet:
        for number, (ps, workers) in enumerate([(1, 1), (2, 2), (1, 3), (2, 1)], start=1):
            await fleet.generation(number, ps=ps, workers=workers, previous=number - 1 or None)
            await fleet.steps(5, generation=number)
        fleet.pace(0)
        finished = await fleet.finished()
        counted_once(fleet, finished)
        assert finished.step == epochs * UPDATES
        assert staleness(fleet) == {1: 0, 2: 0, 3: 0, 4: 0}


def staleness(fleet: Fleet) -> dict[int, int]:
    """Return the largest staleness of a gradient in each generation."""
    found: dict[int, int] = {}
    for report in [m for m in fleet.said if isinstance(m, ProgressReported)]:
        if report.staleness is not None:
            largest = found.get(report.generation, 0)
            found[report.generation] = max(largest, report.staleness.largest)
    return found


@pytest.mark.parametrize("consistency", ["async", "global-batch", "exact"])
async def test_the_gradient_noise_is_reported_with_the_cost_of_staleness(
    start: Start, consistency: str
) -> None:
    often = {"noise_share": 0.5}
    async with start("steady.py", settings=often, epochs=400, consistency=consistency) as fleet:
        fleet.pace(0)
        await fleet.generation(1, ps=1, workers=2)
        told = await fleet.until(
            ProgressReported,
            lambda m: m.gradient_noise is not None and m.staleness_cost is not None,
        )
        assert told.gradient_noise is not None and told.staleness_cost is not None
        assert told.gradient_noise == pytest.approx(STEADY_NOISE, rel=0.4)  # one of 20 comparisons
        assert told.staleness_cost == 0.0 or consistency == "async"


async def test_the_gradient_noise_of_a_program_that_counts_is_not_measured(start: Start) -> None:
    """Measuring would change the counts."""
    async with start(settings={"noise_share": 0.5}, epochs=60) as fleet:
        fleet.pace(0)
        await fleet.generation(1, ps=1, workers=1)
        counted_once(fleet, await fleet.finished())
        reports = [m for m in fleet.said if isinstance(m, ProgressReported)]
        assert {m.gradient_noise for m in reports} == {None}


async def test_an_update_of_which_a_worker_is_killed_is_made_by_the_others(start: Start) -> None:
    epochs = 8
    async with start(epochs=epochs, consistency="global-batch") as fleet:
        await fleet.generation(1, ps=1, workers=3)
        await fleet.steps(5, generation=1)
        await fleet.kill("worker-1")
        await fleet.steps(5, generation=1)
        await fleet.kill("worker-2")
        await fleet.steps(5, generation=1)
        fleet.pace(0)
        finished = await fleet.finished()
        assert finished.outcome == "succeeded", finished.cause
        assert finished.counted == finished.samples == EXAMPLES * epochs
        assert finished.step == epochs * UPDATES
        read = fleet.counts()
        assert min(read["counts"]) == epochs, "each example is in an update of each epoch"
        assert sum(read["counts"]) <= EXAMPLES * epochs + 2 * BATCH, "two updates were dropped"


async def test_a_restarted_job_counts_every_example_once(
    start: Start,
) -> None:
    async with start(epochs=12, handover="restart") as fleet:
        await fleet.generation(1, ps=1, workers=1)
        await fleet.steps(7, generation=1)
        fact = await fleet.generation(2, ps=2, workers=2, previous=1)
        assert fact.samples > 7 * BATCH
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_a_generation_continues_when_the_next_is_abandoned(
    start: Start,
) -> None:
    async with start(epochs=16, checkpoint=SELDOM) as fleet:
        await fleet.generation(1, ps=1, workers=1)

        await fleet.propose(2, ps=2, workers=2, previous=1)
        await fleet.prepared(2)
        await fleet.abandon(2)
        await fleet.steps(8, generation=1)
        assert not [m for m in fleet.said if isinstance(m, CheckpointSaved)], "it never stopped"
        reported = [m.step for m in fleet.said if isinstance(m, ProgressReported)]
        assert reported == sorted(reported)

        await fleet.propose(3, ps=2, workers=2, previous=1)
        await fleet.order(3, previous=1)
        drained = await fleet.drained(1)
        assert not [m for m in fleet.said if isinstance(m, TrainingResumed) and m.generation == 3]
        await fleet.abandon(3)
        assert (await fleet.steps(8, generation=1)).step > drained.step

        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_a_killed_worker_costs_at_most_its_current_batch(
    start: Start,
) -> None:
    async with start(epochs=16) as fleet:
        await fleet.generation(1, ps=1, workers=2)
        fleet.pace(2.0)
        await fleet.steps(2, generation=1)
        await fleet.kill("worker-1")
        fleet.pace(0.15)
        await fleet.generation(2, ps=1, workers=[0, 2], previous=1)
        drained = await fleet.drained(1)
        read = fleet.counts(drained)
        assert read["applied"] == sum(read["counts"])
        assert drained.samples <= read["applied"] <= drained.samples + BATCH

        await fleet.kill("worker-2")  # at any moment
        fleet.pace(0)
        finished = await fleet.finished()
        counts, due = fleet.counts()["counts"], EXAMPLES * fleet.request.epochs
        assert finished.outcome == "succeeded", finished.cause
        assert min(counts) >= fleet.request.epochs and sum(counts) <= due + 2 * BATCH
        assert finished.samples == due <= finished.counted <= due + 2 * BATCH


async def test_the_only_worker_can_be_killed_and_replaced_without_losing_updates(
    start: Start,
) -> None:
    async with start(epochs=16) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        done = await fleet.steps(8, generation=1)
        await fleet.kill("worker-0")

        fact = await fleet.generation(2, ps=1, workers=[1], previous=1)

        assert (await fleet.drained(1)).step >= done.step and fact.step > done.step
        fleet.pace(0)
        finished = await fleet.finished()
        counts, due = fleet.counts()["counts"], EXAMPLES * fleet.request.epochs
        assert min(counts) >= fleet.request.epochs and sum(counts) <= due + BATCH
        assert finished.samples == due <= finished.counted <= due + BATCH


async def test_a_killed_prepared_child_costs_its_generation_and_no_update(
    start: Start,
) -> None:
    async with start(epochs=16, checkpoint=SELDOM) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        for number, name in enumerate(("chief-0", "ps-0", "worker-0"), start=2):
            await fleet.propose(number, ps=1, workers=1, previous=1)
            await fleet.prepared(number)

            fleet.kill_newest_child(name)

            said = await fleet.until(
                GenerationPrepared, lambda m, n=number: m.error and m.generation == n
            )
            assert said.pod == name
            await fleet.abandon(number)
            await fleet.steps(5, generation=1)
        assert not [m for m in fleet.said if isinstance(m, CheckpointSaved)], "it never stopped"
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


@pytest.mark.parametrize("name", ["chief-0", "ps-0"])
async def test_a_pod_exits_with_the_signal_of_its_killed_child(start: Start, name: str) -> None:
    async with start(epochs=16) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        fleet.expected.add(name)

        fleet.kill_newest_child(name)

        assert await fleet.left(name) == 128 + signal.SIGKILL


async def test_a_killed_ps_and_chief_lose_no_example_and_repeat_none(
    start: Start,
) -> None:
    """Model and ledger are rolled back together: to the beginning, later to the last checkpoint."""
    async with start(epochs=16, checkpoint=CheckpointRule(every_s=1.0)) as fleet:
        await fleet.generation(1, ps=1, workers=1)

        await fleet.kill("ps-0")
        await fleet.generation(2, ps=[1, 2], workers=1, previous=1)
        await fleet.until(CheckpointSaved, lambda m: m.generation == 2 and m.step > 0)
        await fleet.steps(3, generation=2)

        await fleet.kill("chief-0")
        fact = await fleet.generation(3, ps=[1, 2], workers=1, chief=1)
        assert fact.samples > BATCH, "it went on from the last checkpoint"

        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


# ------------------------------------------------------------ failures


async def test_a_used_port_fails_a_generation_and_not_the_job(
    start: Start,
) -> None:
    async with start() as fleet:
        ready = await fleet.pod("chief-0")
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("", ready.ports[0]))
            squatter.listen()
            await fleet.propose(1, ps=1, workers=1)
            said = await fleet.until(GenerationPrepared, lambda m: m.error is not None)

        assert said.pod == "chief-0" and "gRPC server" in str(said.error)
        assert not [m for m in fleet.said if isinstance(m, JobFinished)]


async def test_without_memory_for_two_generations_the_pod_reports_it_and_trains(
    start: Start,
) -> None:
    async with start(
        epochs=16, settings={"memory_gib": 0.3}, warm=False, checkpoint=SELDOM
    ) as fleet:  # one chief already has more than that
        await fleet.generation(1, ps=1, workers=1)
        await fleet.propose(2, ps=1, workers=2, previous=1)

        said = await fleet.until(
            GenerationPrepared, lambda m: m.generation == 2 and m.error is not None
        )

        assert str(said.error).startswith(NOT_ENOUGH_MEMORY) and "the limit of 0.3" in str(
            said.error
        )
        await fleet.abandon(2)
        await fleet.steps(8, generation=1)
        assert not [m for m in fleet.said if isinstance(m, CheckpointSaved)], "it never stopped"
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_a_program_error_during_training_fails_the_job_with_its_traceback(
    start: Start,
) -> None:
    async with start("raising.py") as fleet:
        await fleet.propose(1, ps=1, workers=1)
        await fleet.order(1, previous=None)

        finished = await fleet.finished()

        assert finished.outcome == "failed"
        told = (
            "raising.py:25: LookupError: the second half of the library has burnt down\nTraceback"
        )
        assert finished.cause.startswith(told), finished.cause
        assert finished.samples == BATCH * finished.step > 0, "what was trained before is told"
        assert await fleet.left("chief-0") != 0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("lacking.py", r"^lacking.py lacks loss\(\), dataset\(\)$"),
        (
            "broken.py",
            r"^broken.py:3: ModuleNotFoundError: No module named .a_library_that_nobody_has.\n",
        ),
    ],
    ids=["lacks-a-function", "cannot-be-imported"],
)
async def test_an_unusable_program_fails_the_job_with_a_reason(
    start: Start, program: str, why: str
) -> None:
    async with start(program) as fleet:
        await fleet.propose(1, ps=1, workers=1)

        finished = await fleet.finished()

        assert finished.outcome == "failed" and re.search(why, finished.cause), finished.cause


async def test_a_program_with_another_digest_is_not_run(start: Start, bus: Bus) -> None:
    async with start() as fleet:
        await (await bus.program_store()).put(fleet.request.program.digest, b"import os")
        await fleet.propose(1, ps=1, workers=1)

        finished = await fleet.finished()

        told = (
            "counting.py cannot be fetched: the store has something else under"
            f" {fleet.request.program.digest}: "
        )
        assert finished.outcome == "failed" and finished.cause.startswith(told), finished.cause


AT_THE_END = ("evaluation", "raise")
LATE = ("gil", *AT_THE_END)  # otherwise they fail while the generation is prepared
QUICK = {
    "stuck_early_s": 20.0,
    "stuck_s": 6.0,
}  # s; more than any function that returns takes here, also on a busy machine


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (
            "import",
            (
                r"its import has not returned for 20 s[\s\S]*line \d+, in"
                r' <module>\s+_reach\("import"\)'
            ),
        ),
        (
            "dataset",
            r'dataset\(\d+, \d+\) has not returned for 6 s[\s\S]*in dataset\s+_reach\("dataset"\)',
        ),
        (
            "evaluation",
            (
                r"evaluation\(\), or a batch of it, has not returned for 6"
                r' s[\s\S]*_reach\("evaluation"\)'
            ),
        ),
        (
            "step",
            r"no update was applied for 30 s \(since update 0\), while workers had \d+ examples",
        ),
        ("gil", r'blocked its other threads [\s\S]*hanging.py", line \d+ in dataset'),
        ("raise", r"^hanging.py:\d+: LookupError: the exam papers are lost\n[\s\S]*in pairs\s"),
    ],
    ids=["import", "dataset", "evaluation", "step", "lock", "raise"],
)
async def test_a_hanging_or_late_failing_program_fails_the_job_with_its_line(
    start: Start, where: str, why: str
) -> None:
    # The worker finds a lock after more than 20 s; the chief, on a busy machine, after 30 s.
    patience = {"stuck_patience": 4.0} if where == "gil" else {}
    async with start("hanging.py", settings=QUICK | patience, epochs=1) as fleet:
        if where not in LATE:
            fleet.hang(where)
        await fleet.propose(1, ps=1, workers=1)
        if where in LATE:
            await fleet.prepared(1)
            fleet.hang(where)
        await fleet.order(1, previous=None)

        finished = await fleet.finished()

        assert finished.outcome == "failed" and re.search(why, finished.cause), finished.cause
        if where in AT_THE_END:
            assert (finished.samples, finished.step) == (64, 4), "all was trained, and is told"


async def test_a_faulty_evaluation_fails_before_training(start: Start) -> None:
    async with start("hanging.py", settings=QUICK, epochs=1) as fleet:
        fleet.hang("raise")
        await fleet.propose(1, ps=1, workers=1)

        finished = await fleet.finished()

        told = "hanging.py:67: LookupError: the exam papers are lost\nTraceback"
        assert finished.cause.startswith(told), finished.cause
        assert finished.outcome == "failed" and finished.samples == 0
        assert not [
            m for m in fleet.said if isinstance(m, GenerationPrepared) and m.pod == "chief-0"
        ]


async def test_a_hanging_preparation_is_reported_and_the_previous_generation_continues(
    start: Start,
) -> None:
    async with start("hanging.py", settings=QUICK, epochs=100_000) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        fleet.hang("model")
        await fleet.propose(2, ps=1, workers=1, previous=1)

        said = await fleet.until(
            GenerationPrepared, lambda m: m.generation == 2 and m.error is not None
        )

        assert said.pod == "chief-0" and "model() or optimizer() has not returned for 20 s" in str(
            said.error
        )
        assert re.search(r'hanging.py", line \d+, in model\s+_reach\("model"\)', str(said.error))
        fleet.hang("-")
        await fleet.abandon(2)
        await fleet.steps(10, generation=1)


EXAMPLES, BATCH, EPOCHS = 250, 16, 6


async def test_examples_of_accumulated_updates_count_once_an_epoch_across_hand_overs(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    fields = {"epochs": EPOCHS, "batch": Span(start=BATCH, min=5, max=BATCH), "device_batch_max": 5}
    async with Fleet(bus, nats_url, tmp_path / "fleet", "accumulating.py", **fields) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        await fleet.steps(2, generation=1)
        resumed = await fleet.generation(2, ps=2, workers=2, previous=1)
        fleet.pace(0)
        finished = await fleet.finished()

    assert finished.outcome == "succeeded", finished.cause
    assert finished.counted == finished.samples == EXAMPLES * EPOCHS
    assert fleet.counts()["counts"] == [EPOCHS] * EXAMPLES
    drained = next(m for m in fleet.said if isinstance(m, CheckpointSaved) and m.final)
    assert 0 < drained.samples <= drained.step * 3 * BATCH and resumed.step >= drained.step
    assert finished.step * 3 * BATCH >= finished.samples > finished.step * BATCH


Story = Callable[[Fleet], Awaitable[None]]


async def stay(fleet: Fleet) -> None:
    await fleet.generation(1, ps=1, workers=1)


async def change(fleet: Fleet) -> None:
    await fleet.generation(1, ps=1, workers=3)
    await fleet.steps(5, generation=1)
    await fleet.generation(2, ps=3, workers=2, previous=1)
    await fleet.steps(3, generation=2)
    await fleet.kill("worker-1")
    await fleet.steps(3, generation=2)


async def exact_weights(
    folder: Path, program: str, story: Story, noise_share: float
) -> dict[str, bytes]:
    """Train a job with this history; return its final weights. `noise_share`: of the time in which
    gradient noise is measured.
    """
    folder.mkdir()
    server = NatsServer(folder / "nats")
    await server.start()
    bus = await connected(server.url, "test")
    fields: dict[str, Any] = {
        "epochs": EXACT_EPOCHS,
        "consistency": "exact",
        "settings": {"noise_share": noise_share},
    }
    try:
        async with Fleet(bus, server.url, folder / "fleet", program, **fields) as fleet:
            await story(fleet)
            fleet.pace(0)
            finished = await fleet.finished()
            assert finished.outcome == "succeeded", finished.cause
            assert finished.step == EXACT_EPOCHS * UPDATES
            return fleet.final_weights()
    finally:
        await bus.close()
        await server.kill()


EXACT_EPOCHS = 6


@pytest.mark.parametrize("program", ["noisy.py", "noisy_tables.py"])
async def test_exact_results_are_bit_equal_whatever_the_history(
    tmp_path: Path, program: str
) -> None:
    static = await exact_weights(tmp_path / "static", program, stay, noise_share=0.0)
    changing = await exact_weights(tmp_path / "changing", program, change, noise_share=0.5)

    assert len(static) > 15, "model and optimizer are compared"
    assert {name for name in static if static[name] != changing[name]} == set()
