"""Tests of trials: a trial returns a placement or a shortage, and holds its capacity until undo."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.placement.placers import has_room, ladder, place
from services.allocator.placement.resizing import place_all_resized, place_resized
from services.allocator.placement.room import Room
from services.allocator.placement.trial import Placed, PlacementRequest, Shortage, try_place
from services.allocator.policies.contract import Node, Quota, Size
from shared.messages import Resources, RoleResources, TaskPlan
from tests.allocator.builders import EVEN

NOW, MOST = Size(1, 1), Size(4, 6)


def room(*cores: float, quota: float | None = None) -> Room:
    """Return a room. `cores`: free on each node; `quota`: cores of the namespace."""
    whole = Resources(cpu=10, memory_gib=100)
    nodes = [
        Node(f"n{n}", Resources(cpu=cpu, memory_gib=100), whole) for n, cpu in enumerate(cores, 1)
    ]
    return Room(
        nodes, None if quota is None else {"default": Resources(cpu=quota, memory_gib=1000)}
    )


def request(
    most: Size, least: Size | None = None, keep: tuple[TaskPlan, ...] = (), **fields: Any
) -> PlacementRequest:
    usual = {"job": "default.a", "sizes": EVEN, "serial": 10}
    return PlacementRequest(keep=keep, most=most, least=least or most, **(usual | fields))


def standing(size: Size = NOW) -> tuple[TaskPlan, ...]:
    """Return the tasks of a job, all on the first node."""
    tasks = place(room(100.0), "default.a", (), size, EVEN, 0)
    assert tasks is not None
    return tasks


def placed(trial: Placed | Shortage) -> Placed:
    assert isinstance(trial, Placed)
    return trial


def short(trial: Placed | Shortage) -> Shortage:
    assert isinstance(trial, Shortage)
    return trial


def test_a_trial_holds_its_capacity_until_undo() -> None:
    free = room(4.0)
    trial = placed(try_place(free, request(Size(1, 2))))
    assert trial.is_whole and len(trial.tasks) == 4 and free.nodes["n1"].free.cpu == 0
    trial.undo()
    assert free.nodes["n1"].free.cpu == 4


def test_a_trial_that_fits_nothing_takes_nothing_and_has_a_shortage() -> None:
    free = room(2.0)
    trial = short(try_place(free, request(Size(1, 4), Size(1, 1))))
    assert free.nodes["n1"].free.cpu == 2 and trial.size == Size(1, 1)
    assert trial.describe() == "waits for room (too little cpu) for a chief, 1 ps and 1 worker"


def test_a_partial_trial_knows_the_shortage() -> None:
    trial = placed(try_place(room(3.0), request(Size(1, 4), Size(1, 1))))
    assert not trial.is_whole and len(trial.tasks) == 3
    assert (
        trial.missing().missing_resources().startswith(" (too little cpu")
        and trial.missing().quota_reason() == ""
    )


def test_a_quota_shortage_is_described_before_the_partial_placement() -> None:
    free = room(9.0, quota=4.0)
    quota = Quota(cpu=9.0)
    trial = placed(try_place(free, request(Size(1, 4), Size(1, 1), quota=quota)))
    assert len(trial.tasks) == 4 and free.remaining_quotas["default"].cpu == 0
    assert (
        trial.missing().quota_reason()
        == "quota of namespace default: needs 6 cpu more, and 4 is left"
    )


def test_a_quota_that_can_never_suffice_is_described_as_such() -> None:
    trial = short(try_place(room(9.0, quota=2.0), request(Size(1, 4), quota=Quota(cpu=2.0))))
    assert (
        trial.describe() == "quota of namespace default: needs at least 6 cpu, and the limit is 2"
    )


def test_avoided_nodes_are_restored_after_a_trial() -> None:
    free = room(9.0, 9.0)
    trial = placed(try_place(free, request(Size(1, 1), avoid=frozenset({"n1"}))))
    assert {task.node for task in trial.tasks} == {"n2"}
    trial.undo()
    assert {task.node for task in placed(try_place(free, request(Size(1, 1)))).tasks} == {"n1"}


def test_releases_may_enlarge_a_starting_job_and_keep_its_partial_placement() -> None:
    free = room(3.0)
    trial = placed(try_place(free, request(Size(1, 4), Size(1, 1))))
    assert trial.has_more_room_later({"n1": Resources(cpu=1)}, {})
    assert len(trial.tasks) == 3 and free.nodes["n1"].free.cpu == 0
    assert not trial.has_more_room_later({"n1": Resources(memory_gib=1)}, {})


def test_releases_may_enlarge_a_running_job() -> None:
    trial = short(try_place(room(1.0), request(Size(1, 4), keep=standing())))
    assert trial.has_more_room_later(NOW, {"n1": Resources(cpu=1)}, {})
    assert not trial.has_more_room_later(NOW, {"n1": Resources(memory_gib=1)}, {})


def test_a_running_job_is_partially_placed_beside_its_tasks() -> None:
    free = room(2.0)
    trial = short(try_place(free, request(Size(1, 4), keep=standing())))
    part = trial.place_part(NOW)
    assert part is not None and len(part.tasks) == 5 and free.nodes["n1"].free.cpu == 0
    assert trial.place_part(NOW) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_a_partial_placement_is_the_largest_fitting_size(
    cores: list[int],
) -> None:
    free = room(*map(float, cores))
    trial = try_place(free, request(MOST, keep=standing()))
    if isinstance(trial, Placed):
        return
    holds = (
        size for size in ladder(MOST, NOW) if has_room(free, "default.a", standing(), size, EVEN)
    )
    assert trial.largest_part(NOW) == next(holds, NOW)


def test_if_no_task_can_be_resized_there_is_no_partial_placement() -> None:
    wide = RoleResources(chief=EVEN.chief, ps=replace(EVEN.ps, cpu=4.0), worker=EVEN.worker)
    trial = short(
        try_place(room(0.0), request(MOST, keep=standing(), sizes=wide, placer=place_all_resized))
    )
    assert trial.largest_part(NOW) == NOW and trial.place_part(NOW) is None


def test_tasks_that_cannot_grow_in_place_are_a_shortage() -> None:
    wide = RoleResources(chief=EVEN.chief, ps=replace(EVEN.ps, cpu=4.0), worker=EVEN.worker)
    free = room(1.0)
    asked = request(NOW, keep=standing(), sizes=wide, placer=place_resized)
    assert isinstance(try_place(free, asked), Shortage) and free.nodes["n1"].free.cpu == 1
    assert [task.resources.cpu for task in placed(try_place(room(3.0), asked)).tasks] == [
        1.0,
        4.0,
        1.0,
    ]
