"""Tests of one pod on a real bus, from a cluster spec to training.

Its children are fakes, so a test takes milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.pod import fence
from services.trainer.pod.executor import ChildAction
from services.trainer.pod.service import Trainer
from services.trainer.pod.state_machine import (
    EXIT_BUS_LOST,
    EXIT_EVICTED,
    EXIT_KILLED,
    EXIT_RETRY,
    ChildEventReceived,
    ChildExited,
    ChildNotStarted,
    Event,
    FactReceived,
    OrdersLost,
    TimerDue,
)
from services.trainer.pod.supervise import (
    BeginChild,
    DrainChild,
    EndChild,
    GoOnChild,
    ReadAheadChild,
    StartChild,
)
from services.trainer.protocol import (
    ChildEvent,
    CommittedCheckpoints,
    Failed,
    Finished,
    MemoryHeadroom,
    Order,
    Prepared,
    Progress,
    Resumed,
    Saved,
    Skipped,
    Unsaved,
)
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.messages import (
    AllocationDecided,
    CheckpointFailed,
    CheckpointRule,
    CheckpointSaved,
    CheckpointSkipped,
    ClusterSpecPublished,
    GenerationPrepared,
    JobFinished,
    Message,
    TaskUsage,
    TrainingResumed,
)
from shared.runtime.app import ServiceExit
from tests.trainer.builders import abandoned, final, order, resumed, spec

KEY = "default.digits"
FIRST, SECOND = spec(1), spec(2, previous=1)
PREPARED = Prepared(seconds=3.0)
RESUMED = Resumed(step=1, samples=32, pause_s=None, restore_s=0.0, first_step_s=0.1)
PROGRESS = Progress(
    step=10, epoch=0, samples=320, total_samples=2880, samples_per_second=9.0, loss=None
)
FINISHED = Finished(step=90, samples=2880, counted=2880, metrics={"accuracy": 0.5})
KEEP_ONE = msgspec.structs.replace(FIRST.request, checkpoint=CheckpointRule(keep=1))
LOST = Failed(cause="ps-0 has gone", peer=True)


class Orders:
    """An executor that only records its orders."""

    def __init__(self) -> None:
        self.noted: list[ChildAction] = []
        self.told: list[Order] = []
        self.ended: set[int] = set()

    async def perform(self, action: ChildAction) -> None:
        self.noted.append(action)

    def send(self, generation: int, order: Order) -> None:
        self.told.append(order)

    def forget_child(self, generation: int) -> None:
        """Do nothing: there are no processes."""


class Pod:
    """A trainer with a recording executor."""

    def __init__(self, trainer: Trainer, bus: Bus) -> None:
        self.trainer, self.bus, self.hands = trainer, bus, Orders()
        trainer.executor = cast(Any, self.hands)

    async def hears(self, *facts: Any) -> list[ChildAction]:
        """Handle the facts and return the actions on children."""
        before = len(self.hands.noted)
        for fact in facts:
            await self.handles(FactReceived(fact))
        return self.hands.noted[before:]

    async def handles(self, event: Event | None) -> None:
        """Handle an event and those that follow from it, as one lane does."""
        while event is not None:
            event = await self.trainer.perform_actions(self.trainer.actions_for(event))

    async def child_says(self, spec: ClusterSpecPublished, word: ChildEvent) -> None:
        await self.handles(ChildEventReceived(spec, word))

    async def child_ends(self, spec: ClusterSpecPublished) -> None:
        await self.handles(ChildExited(spec))

    async def next_timer(self) -> None:
        """Wait for a timer other than that of the deadlines, and handle it."""
        while (event := await self.trainer.events.get()) == TimerDue("deadline"):
            pass
        await self.handles(cast(Any, event))

    async def trains(self) -> None:
        await self.hears(FIRST)
        await self.child_says(FIRST, PREPARED)
        await self.hears(order(1))
        await self.child_says(FIRST, RESUMED)

    async def said(self, kind: type[Message]) -> Any:
        last = await self.bus.last_message(kind, KEY)
        return last and last.message


async def pod_of(bus: Bus, folder: Path, name: str) -> Pod:
    role: Any = name.split("-")[0]
    settings = Settings(
        job="digits",
        uid=7,
        pod=name,
        pod_uid="u",
        role=role,
        serial=0,
        checkpoint_dir=str(folder / "c"),
        peer_grace_s=0.05,
    )
    return Pod(Trainer(bus, settings, await fence.open_fence(bus, KEY, 7), folder, None), bus)


@pytest.fixture
async def chief(bus: Bus, tmp_path: Path) -> Pod:
    return await pod_of(bus, tmp_path, "chief-0")


@pytest.fixture
async def worker(bus: Bus, tmp_path: Path) -> Pod:
    return await pod_of(bus, tmp_path, "worker-0")


async def test_a_cluster_spec_starts_training(chief: Pod) -> None:
    assert await chief.hears(FIRST) == [StartChild(FIRST, fresh=False)]

    await chief.child_says(FIRST, PREPARED)
    assert (await chief.said(GenerationPrepared)).seconds == 3.0

    assert await chief.hears(order(1)) == [BeginChild(1, None, chief=True)]

    await chief.child_says(FIRST, RESUMED)
    assert (await chief.said(TrainingResumed)).generation == 1


async def test_a_generation_takes_over_and_the_previous_one_ends(chief: Pod) -> None:
    await chief.trains()

    assert await chief.hears(SECOND) == [StartChild(SECOND, fresh=False)]
    await chief.child_says(SECOND, PREPARED)
    assert await chief.hears(order(2, previous=1)) == [DrainChild(1, 2)]
    assert await chief.hears(final(1)) == [BeginChild(2, final(1).path, chief=True)]
    await chief.child_says(SECOND, RESUMED)

    assert chief.hands.noted[-1] == EndChild(1)
    assert (await chief.said(TrainingResumed)).phases.save_s == final(1).seconds


async def test_a_drained_generation_continues_when_the_next_is_abandoned(chief: Pod) -> None:
    await chief.trains()
    await chief.hears(SECOND, order(2, previous=1))

    assert await chief.hears(abandoned(2)) == [EndChild(2), GoOnChild(1)]


@pytest.mark.parametrize("decided", [None, 1, 2])
async def test_a_pod_whose_generation_was_lost_by_the_bus_exits_with_its_own_code(
    worker: Pod, decided: int | None
) -> None:
    await worker.hears(FIRST, SECOND)
    if decided:
        about = {"job": "digits", "uid": 7, "generation": decided, "revision": decided}
        known = AllocationDecided(**about, request=FIRST.request, tasks=(), batch=32, reason="test")  # type: ignore[arg-type]
        await worker.bus.publish(known)

    if decided == 2:
        return await worker.handles(OrdersLost())
    with pytest.raises(ServiceExit) as left:
        await worker.handles(OrdersLost())
    assert left.value.code == EXIT_BUS_LOST


async def test_facts_of_an_earlier_job_with_the_same_name_are_ignored(chief: Pod) -> None:
    assert await chief.hears(msgspec.structs.replace(FIRST, uid=6)) == []


async def test_a_checkpoint_is_committed_and_published_and_the_chief_gets_the_kept_ones(
    chief: Pod,
) -> None:
    await chief.trainer.fence.claim(1)
    brief = msgspec.structs.replace(FIRST, request=KEEP_ONE)

    for step in (10, 20):
        about: dict[str, Any] = {
            "path": f"/c/{step}",
            "digest": f"d{step}",
            "cost_s": 2.0,
            "ran_s": 9.0,
            "planned": True,
        }
        await chief.child_says(brief, Saved(step=step, samples=step * 32, seconds=0.1, **about))

    said, entry = await chief.said(CheckpointSaved), chief.trainer.fence.entry
    assert (said.path, said.digest, said.cost_s) == ("/c/20", "d20", 2.0)
    assert (entry.paths, entry.digests) == (("/c/20",), {"/c/20": "d20"})
    assert entry.past == SaveHistory(ran_s=18.0, cost_s=2.0, costs_s=(2.0, 2.0), took_s=(0.1, 0.1))
    assert chief.hands.told == [
        CommittedCheckpoints(paths=("/c/10",), digests={"/c/10": "d10"}, samples=320),
        CommittedCheckpoints(paths=("/c/20",), digests={"/c/20": "d20"}, samples=640),
    ]


async def test_a_requested_save_does_not_count_as_a_cost_measurement(chief: Pod) -> None:
    await chief.trainer.fence.claim(1)
    await chief.child_says(
        FIRST, Saved(step=10, samples=320, path="/c/10", seconds=4.0, cost_s=4.0, ran_s=9.0)
    )

    assert chief.trainer.fence.entry.past == SaveHistory(ran_s=9.0)


@pytest.mark.parametrize(("next_s", "warnings"), [(50.0, 0), (90.0, 1)])
async def test_exceeding_the_allowed_repetition_is_logged_once(
    chief: Pod, next_s: float, warnings: int
) -> None:
    await chief.trainer.fence.claim(1)
    with capture_logs() as lines:
        for step in (10, 20):
            about: dict[str, Any] = {
                "path": f"/c/{step}",
                "cost_s": 10.0,
                "planned": True,
                "next_s": next_s,
            }
            await chief.child_says(FIRST, Saved(step=step, samples=step * 32, seconds=1.0, **about))

    told = [line for line in lines if line["event"] == "SavesCostMuch"]
    assert [(line["repeated_s"], line["wanted_s"]) for line in told] == [
        (next_s + 2.0, 60.0)
    ] * warnings
    assert (await chief.said(CheckpointSaved)).next_s == next_s


async def test_a_final_checkpoint_deletes_nothing(chief: Pod) -> None:
    await chief.trainer.fence.claim(1)
    word = Saved(
        step=10, samples=320, path="/c/10", seconds=0.1, final=True, successor=2, cost_s=2.0
    )
    await chief.child_says(FIRST, word)

    assert chief.hands.told == [] and chief.trainer.fence.entry.past.cost_s is None


async def test_a_hand_over_with_a_failed_checkpoint_is_abandoned_and_may_be_retried(
    chief: Pod,
) -> None:
    await chief.trains()
    await chief.hears(SECOND, order(2, previous=1))
    assert chief.trainer.machine.pod.children[1] == "draining"

    unsaved = Unsaved(
        step=10,
        path="/c/gen-1/ckpt-10",
        cause="it is full",
        remedy="make room",
        final=True,
        successor=2,
    )
    await chief.child_says(FIRST, unsaved)

    said = await chief.said(CheckpointFailed)
    assert (said.cause, said.remedy, said.successor) == ("it is full", "make room", 2)
    assert await chief.hears(abandoned(2)) == [EndChild(2)], "it has gone on by itself"
    third = spec(3, previous=1)
    assert DrainChild(1, 3) in await chief.hears(third, order(3, previous=1))


async def test_a_failed_save_before_a_hand_over_does_not_end_the_drain(chief: Pod) -> None:
    await chief.trains()
    await chief.hears(SECOND, order(2, previous=1))

    await chief.child_says(
        FIRST, Unsaved(step=10, path="/c", cause="it is full", remedy="make room")
    )

    assert await chief.hears(abandoned(2)) == [EndChild(2), GoOnChild(1)]


async def test_a_base_that_is_not_written_ends_no_read_ahead(chief: Pod) -> None:
    await chief.trains()
    await chief.hears(SECOND)
    failed = Unsaved(step=10, path="/c", cause="it is full", remedy="make room")
    base = msgspec.structs.replace(failed, is_base=True)

    before = list(chief.hands.noted)
    await chief.child_says(FIRST, base)
    assert chief.hands.noted == before
    await chief.child_says(FIRST, failed)
    assert chief.hands.noted == [*before, ReadAheadChild(2, "")]


async def test_a_skipped_checkpoint_is_published(chief: Pod) -> None:
    await chief.child_says(
        FIRST, Skipped(path="/c/gen-1/ckpt-10", cause="it is torn", instead="/c/gen-1/ckpt-5")
    )

    said = await chief.said(CheckpointSkipped)
    assert (said.path, said.cause, said.instead) == (
        "/c/gen-1/ckpt-10",
        "it is torn",
        "/c/gen-1/ckpt-5",
    )


async def test_a_chief_gets_the_memory_headroom_of_its_ps(chief: Pod) -> None:
    await chief.trains()
    await chief.child_says(FIRST, PROGRESS)
    assert chief.hands.told == []

    chief.trainer.usage_reporter.usage["ps-0"] = TaskUsage(
        task="ps-0", cpu=0.1, memory_gib=0.5, spare_gib=1.5
    )
    await chief.child_says(FIRST, PROGRESS)

    assert chief.hands.told == [MemoryHeadroom(gib=1.5)]


# ------------------------------------------------------------ how a pod ends


async def test_a_job_that_has_finished_ends_its_chief(chief: Pod) -> None:
    await chief.trains()

    with pytest.raises(ServiceExit, match=r"^0$"):
        await chief.child_says(FIRST, FINISHED)

    assert (await chief.said(JobFinished)).metrics == {"accuracy": 0.5}


async def test_a_failed_program_fails_the_job_with_its_error(chief: Pod) -> None:
    await chief.trains()
    await chief.child_says(FIRST, Failed(cause="net.py:3: ValueError"))

    with pytest.raises(ServiceExit, match=r"^1$"):
        await chief.child_ends(FIRST)

    assert (await chief.said(JobFinished)).cause == "net.py:3: ValueError"


@pytest.mark.parametrize(
    ("word", "code"), [(None, EXIT_KILLED), (LOST, EXIT_RETRY)], ids=["killed", "lost-another"]
)
async def test_the_exit_code_of_a_pod_depends_on_the_failure_of_its_child(
    worker: Pod, word: Failed | None, code: int
) -> None:
    await worker.trains()
    if word is not None:
        await worker.child_says(FIRST, word)

    with pytest.raises(ServiceExit, match=f"^{code}$"):
        await worker.child_ends(FIRST)


async def test_a_chief_that_lost_a_task_stays_for_the_next_generation(chief: Pod) -> None:
    await chief.trains()
    await chief.child_says(FIRST, LOST)
    await chief.hears(SECOND)

    await chief.child_ends(FIRST)
    await chief.next_timer()

    assert chief.trainer.machine.pod.children[1] == "broken"


async def test_a_chief_that_lost_a_task_exits_without_a_next_generation(
    chief: Pod,
) -> None:
    await chief.trains()
    await chief.child_says(FIRST, LOST)
    await chief.child_ends(FIRST)

    with pytest.raises(ServiceExit, match=f"^{EXIT_RETRY}$"):
        await chief.next_timer()


async def test_a_chief_that_lost_a_task_during_its_drain_publishes_its_last_checkpoint(
    chief: Pod,
) -> None:
    await chief.trains()
    await chief.hears(SECOND)
    await chief.child_says(SECOND, PREPARED)
    await chief.hears(order(2, previous=1))
    await chief.child_says(FIRST, LOST)

    await chief.child_ends(FIRST)

    last = await chief.said(CheckpointSaved)
    assert (last.generation, last.path, last.final, last.successor) == (1, "", True, 2)


async def test_a_child_that_exits_before_training_fails_only_its_generation(
    worker: Pod,
) -> None:
    await worker.trains()
    await worker.hears(SECOND)
    await worker.child_says(SECOND, PREPARED)

    await worker.child_ends(SECOND)

    assert "was killed" in (await worker.said(GenerationPrepared)).error
    assert worker.trainer.machine.pod.children == {1: "running"}


async def test_a_pod_without_its_child_in_the_running_generation_exits(worker: Pod) -> None:
    await worker.hears(FIRST)
    await worker.handles(ChildNotStarted(FIRST, "no room"))

    with pytest.raises(ServiceExit, match=f"^{EXIT_RETRY}$"):
        await worker.hears(resumed(1))


async def test_a_replaced_chief_exits_without_a_failure(chief: Pod, bus: Bus) -> None:
    await chief.trains()
    await chief.trainer.fence.claim(1)
    await (await fence.open_fence(bus, KEY, 7)).claim(2)

    with pytest.raises(ServiceExit, match=f"^{EXIT_EVICTED}$"):
        await chief.child_says(FIRST, Saved(step=1, samples=32, path="/c/1", seconds=0.1))
