"""Tests of the executor: a child that cannot start, or is no longer needed, is not started.

The caller gets the result. A child that is prepared beside a running generation has a lower
priority (`nice`) and warms up; the child of a job's first generation does neither.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.pod import executor, fence
from services.trainer.pod.executor import Executor, child_assignment
from services.trainer.pod.state_machine import (
    ChildAssigned,
    ChildExited,
    ChildNotStarted,
    Event,
    FactReceived,
    StateMachine,
)
from services.trainer.pod.supervise import BeginChild, DrainChild, EndChild, GoOnChild, StartChild
from services.trainer.program import program_digest
from services.trainer.protocol import Assignment, Begin, ContinueTraining, Order
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.messages import NOT_ENOUGH_MEMORY, Program, ProgressReported
from tests.trainer.builders import abandoned, request, spec

KEY = "default.digits"


class Doll:
    """A child that only records its orders."""

    def __init__(self) -> None:
        self.orders: list[Order | str] = []
        self.pid: int | None = None

    def send(self, order: Order) -> None:
        self.orders.append(order)

    def end(self) -> None:
        self.orders.append("end")


def no_event(event: Event) -> None:
    raise AssertionError(event)


@pytest.fixture
async def mine(bus: Bus, tmp_path: Path) -> Executor:
    settings = Settings(job="digits", uid=7, pod="chief-0", pod_uid="u", role="chief", serial=0)
    return Executor(
        bus, settings, await fence.open_fence(bus, KEY, 7), tmp_path / "pod", None, no_event
    )


def given(mine: Executor, generation: int) -> Doll:
    doll = Doll()
    mine.children[generation] = cast(Any, doll)
    return doll


async def test_a_child_without_its_program_fails_with_the_reason(
    mine: Executor,
) -> None:
    ended = await mine.perform(StartChild(spec(1), fresh=False))

    assert isinstance(ended, ChildExited) and ended.failure is not None
    assert ended.failure.cause.startswith("digits.py cannot be fetched") and not ended.failure.peer
    assert ended.spec.generation == 1 and mine.children == {}


async def test_a_child_ended_during_the_download_is_not_started(
    mine: Executor,
) -> None:
    program = Program(name="digits.py", digest=program_digest(b""))
    fetched = mine.folder / program.digest / program.name
    fetched.parent.mkdir(parents=True)
    fetched.touch()
    machine, first = StateMachine(mine.settings), replace(spec(1), request=request(program=program))
    machine.handle(FactReceived(first), 0.0)

    ready = await mine.perform(StartChild(first, fresh=False))
    machine.handle(FactReceived(abandoned(1)), 0.0)

    assert isinstance(ready, ChildAssigned) and machine.handle(ready, 0.0) == ()
    assert mine.children == {}


async def test_a_child_without_memory_beside_the_running_one_is_not_started(
    mine: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "memory_limit_gib", lambda set_gib: set_gib)
    given(mine, 1).pid = os.getpid()
    mine.settings = msgspec.structs.replace(mine.settings, memory_gib=0.001)

    missed = await mine.perform(StartChild(spec(2, previous=1), fresh=False))

    assert isinstance(missed, ChildNotStarted) and missed.spec.generation == 2
    assert missed.why.startswith(f"{NOT_ENOUGH_MEMORY}: ")
    assert missed.why.endswith("the limit of 0.001")


async def test_memory_added_in_place_counts(
    mine: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(mine, 1).pid = os.getpid()
    mine.settings = msgspec.structs.replace(mine.settings, memory_gib=0.001)
    monkeypatch.setattr(executor, "memory_limit_gib", lambda set_gib: 1e6 * set_gib)

    assert await mine.memory_shortage(spec(2, previous=1)) is None


async def test_only_a_chief_begins_from_the_ledgers_checkpoint(mine: Executor, bus: Bus) -> None:
    await mine.fence.claim(1)
    await mine.fence.commit("/c/10", 10, 320, keep=2)
    chief, server = given(mine, 2), given(mine, 3)

    await mine.perform(BeginChild(2, None, chief=True))
    await mine.perform(BeginChild(3, None, chief=False))

    assert (chief.orders, server.orders) == (
        [Begin(paths=("/c/10",), samples=320, past=SaveHistory(failures=1))],
        [Begin()],
    )
    assert (await (await fence.open_fence(bus, KEY, 7)).refresh()).generation == 2


@pytest.mark.parametrize(
    ("uid", "told"), [(7, (90, 1118.0)), (6, (0, 0.0))], ids=["this job", "an earlier one"]
)
async def test_a_chief_gets_the_time_of_the_last_reported_update(
    mine: Executor, bus: Bus, uid: int, told: tuple[int, float]
) -> None:
    chief = given(mine, 2)
    about: dict[str, Any] = {
        "generation": 1,
        "epoch": 0,
        "samples": 2880,
        "total_samples": 9000,
        "step": 90,
    }
    await bus.publish(
        ProgressReported(
            job="digits",
            uid=uid,
            **about,
            samples_per_second=9.0,
            applied_s=1118.0,
            reported_s=1150.0,
        )
    )

    await mine.perform(BeginChild(2, None, chief=True))

    (order,) = chief.orders
    assert isinstance(order, Begin) and (order.applied_step, order.applied_s) == told


async def test_the_named_checkpoint_is_tried_before_those_of_the_ledger(
    mine: Executor,
) -> None:
    await mine.fence.claim(1)
    await mine.fence.commit("/c/10", 10, 320, keep=3, digest="d10")
    await mine.fence.commit(
        "/c/20", 20, 640, keep=3, digest="d20", past=SaveHistory(ran_s=60.0, cost_s=0.5), final=True
    )
    chief = given(mine, 2)

    await mine.perform(BeginChild(2, "/c/20", chief=True))

    digests = {"/c/10": "d10", "/c/20": "d20"}
    past = SaveHistory(ran_s=60.0, cost_s=0.5)
    assert chief.orders == [
        Begin(paths=("/c/20", "/c/10"), digests=digests, samples=640, past=past)
    ]


async def test_a_chief_begins_from_the_ledgers_newest_checkpoint(
    mine: Executor,
) -> None:
    await mine.fence.claim(1)
    await mine.fence.commit("/c/10", 10, 320, keep=3, final=True)
    await mine.fence.claim(1, back=True)
    await mine.fence.commit("/c/20", 20, 640, keep=3)
    chief = given(mine, 2)

    await mine.perform(BeginChild(2, "/c/10", chief=True))

    (begin,) = chief.orders
    assert isinstance(begin, Begin) and begin.paths == ("/c/20", "/c/10")


async def test_a_replaced_chief_does_not_begin(mine: Executor) -> None:
    await mine.fence.claim(3)
    chief = given(mine, 2)

    with pytest.raises(Stale):
        await mine.perform(BeginChild(2, "/c/10", chief=True))
    assert chief.orders == []


async def test_a_continuing_generation_reclaims_the_fence_before_training(
    mine: Executor,
) -> None:
    await mine.fence.claim(3)
    chief = given(mine, 2)

    await mine.perform(GoOnChild(2))

    assert (chief.orders, mine.fence.entry.generation) == ([ContinueTraining()], 2)


async def test_an_order_for_an_exited_child_is_ignored(mine: Executor) -> None:
    await mine.perform(DrainChild(1, 2))
    await mine.perform(EndChild(1))

    assert mine.ending == []


async def test_a_stopping_pod_ends_its_children_and_deletes_its_files(mine: Executor) -> None:
    mine.folder.mkdir()
    old, new = given(mine, 1), given(mine, 2)

    await mine.close()

    assert (old.orders, new.orders) == (["end"], ["end"])
    assert mine.children == {} and not mine.folder.exists()


MINE = Settings(
    job="digits",
    uid=7,
    pod="worker-1",
    pod_uid="u",
    role="worker",
    serial=1,
    memory_gib=2.0,
    stuck_s=9.0,
)
PODS = ["chief-0", "ps-0", "worker-0", "worker-1"]


def made(previous: int | None = None, **more: Any) -> Assignment:
    how = {"fresh": False, "follows": previous is not None, "nice": 5, **more}
    return child_assignment(spec(2, previous, pods=PODS), MINE, "/p/net.py", **how)


def test_a_child_gets_its_task_index_and_all_addresses() -> None:
    told = made()

    assert (told.generation, told.role, told.index, told.batch) == (2, "worker", 1, 32)
    assert told.cluster == {"chief": ["h:1"], "ps": ["h:1"], "worker": ["h:1", "h:1"]}


def test_a_child_gets_the_settings_of_its_pod() -> None:
    told = made()

    assert (told.program, told.checkpoint_dir, told.stuck_s) == ("/p/net.py", "/checkpoints", 9.0)
    assert (told.resources.cpu, told.resources.memory_gib) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("how", "nice", "warms_up", "first"),
    [
        ({}, 0, False, True),
        ({"follows": True}, 0, False, False),
        ({"previous": 1}, 5, True, False),
        ({"previous": 1, "fresh": True}, 5, False, False),
        ({"previous": 1, "nice": 0}, 0, True, False),
    ],
    ids=[
        "begins-the-job",
        "after-everything-was-lost",
        "beside-another",
        "after-another-stopped",
        "may-not-be-nice",
    ],
)
def test_preparation_depends_on_the_previous_generation(
    how: dict[str, Any], nice: int, warms_up: bool, first: bool
) -> None:
    told = made(**how)

    assert (told.nice, told.warms_up, told.first) == (nice, warms_up, first)


def test_a_child_gets_the_time_with_the_cluster_off() -> None:
    told = child_assignment(
        replace(spec(2, pods=PODS), off_s=600.0), MINE, "/p", fresh=False, follows=True, nice=0
    )

    assert told.off_s == 600.0


def test_a_pod_outside_the_spec_gets_no_child() -> None:
    with pytest.raises(AssertionError, match="only members start children"):
        child_assignment(spec(2), MINE, "/p/net.py", fresh=False, follows=False, nice=0)
