"""Tests of quotas in placement: a task takes from its namespace's quota as well as from its node.

Both are returned together.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.allocator.placement.placers import place, place_most
from services.allocator.placement.quota import (
    added_resources,
    gang_resources,
    quota_shortage,
    quota_too_small,
)
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Node, Quota, Size
from shared.messages import Resources, RoleResources
from tests.allocator.builders import EVEN, ONE_CORE

WIDE = Resources(cpu=64, memory_gib=256, gpu=8)


def room(**quota: float) -> Room:
    return Room([Node("n1", WIDE, WIDE), Node("n2", WIDE, WIDE)], {"team-a": Quota(**quota).most()})


def test_an_absent_quota_is_unlimited():
    free = room(gpu=0)
    assert len(free.fill("team-a.one", ONE_CORE, 100)) == 100
    assert (
        free.put("team-a.one", Resources(gpu=1)) is None
        and free.put("team-b.one", Resources(gpu=1)) == "n1"
    )


def test_placement_is_limited_by_the_quota():
    free = room(cpu=3)
    assert len(free.fill("team-a.one", ONE_CORE, 2)) == 2
    assert len(free.fill("team-a.two", ONE_CORE, 2)) == 1
    assert len(free.fill("team-b.one", ONE_CORE, 9)) == 9


def test_a_task_grows_in_place_within_its_quota():
    free = room(cpu=2, memory_gib=1)
    assert free.extend("team-a.one", "n1", Resources(cpu=1.5))
    assert not free.extend("team-a.one", "n1", Resources(cpu=1.0))
    assert not free.extend("team-a.one", "n1", Resources(memory_gib=1.5))


@given(st.lists(st.tuples(st.sampled_from(["team-a", "team-b"]), st.floats(0, 3)), max_size=12))
def test_undo_restores_the_quota_exactly(puts):
    free = room(cpu=7.3, memory_gib=9.1)
    before, nodes, mark = free.remaining_quotas["team-a"], dict(free.nodes), free.mark()
    for space, cpu in puts:
        free.put(f"{space}.one", Resources(cpu=cpu, memory_gib=cpu / 3))
    free.undo(mark)
    assert (free.remaining_quotas["team-a"], free.nodes) == (before, nodes)


def test_a_failed_placement_takes_nothing():
    free = room(cpu=3)
    assert place(free, "team-a.one", (), Size(1, 3), EVEN, 0) is None
    assert len(place_most(free, "team-a.one", (), Size(1, 3), Size(1, 1), EVEN, 0) or ()) == 3


def test_quotas_count_all_roles_and_growth_keeps_their_ratio():
    free = room(cpu=9)
    one = place_most(free, "team-a.one", (), Size(2, 4), Size(1, 1), EVEN, 0) or ()
    two = place_most(free, "team-a.two", (), Size(2, 4), Size(1, 1), EVEN, 0) or ()
    assert [len([t for t in one if t.role == role]) for role in ("chief", "ps", "worker")] == [
        1,
        2,
        4,
    ]
    assert place_most(free, "team-a.two", (), Size(2, 4), Size(1, 2), EVEN, 0) is None and two == ()
    assert place_most(free, "team-b.one", (), Size(2, 4), Size(1, 1), EVEN, 0)


def test_device_quotas_count_like_cores():
    devices = RoleResources(
        chief=ONE_CORE, ps=ONE_CORE, worker=Resources(cpu=1, memory_gib=1, gpu=2)
    )
    tasks = place_most(room(gpu=5), "team-a.one", (), Size(1, 4), Size(1, 1), devices, 0) or ()
    assert sum(t.resources.gpu for t in tasks) == 4
    assert (
        quota_too_small(Quota(gpu=1), "team-a", gang_resources(devices, Size(1, 1)))
        == "quota of namespace team-a: needs at least 2 gpu, and the limit is 1"
    )


def test_a_growth_takes_new_tasks_and_in_place_increases():
    tasks = place(room(), "team-a.one", (), Size(2, 1), EVEN, 0) or ()
    two = RoleResources(chief=ONE_CORE, ps=Resources(cpu=2, memory_gib=0.5), worker=ONE_CORE)
    assert added_resources(tasks, Size(1, 3), two, stretched=False) == Resources(
        cpu=2, memory_gib=2
    )
    assert added_resources(tasks, Size(1, 3), two, stretched=True) == Resources(cpu=3, memory_gib=2)
    assert gang_resources(EVEN, Size(2, 3)) == Resources(cpu=6, memory_gib=6)


def test_a_quota_shortage_names_the_namespace_and_every_resource():
    wants = Resources(cpu=4, memory_gib=3, gpu=2)
    assert (
        quota_shortage(room(cpu=2.5, gpu=1), "team-a.one", wants)
        == "quota of namespace team-a: needs 4 cpu more, and 2.5 is left; needs 2 gpu more, and 1"
        " is left"
    )
    assert (
        quota_shortage(room(cpu=2.5), "team-b.one", wants)
        == ""
        == quota_shortage(room(cpu=4), "team-a.one", wants)
    )
    assert (
        quota_too_small(Quota(memory_gib=2), "team-a", wants)
        == "quota of namespace team-a: needs at least 3 GiB, and the limit is 2"
    )
    assert quota_too_small(None, "team-a", wants) == ""
