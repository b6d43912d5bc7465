"""How far a running job may grow beside its tasks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.ground import Ground
from services.allocator.placing.placement import Room, ladder
from services.allocator.policies.contract import Node, Size, Want
from shared.messages import Resources, RoleResources
from tests.allocator.builders import AT_ONCE, EVEN, Story, accepted, node

NOW, MOST = Size(1, 1), Size(4, 6)


def ground(*cores: float, sizes: RoleResources | None = None) -> Ground:
    """Of a job of one ps and one worker; `cores`: free on each node."""
    story = Story().hear(node(cpu=3), accepted())
    story.decided()
    job = story.state.jobs["default.mnist"]
    want = Want(job="default.mnist", ps=MOST.ps, workers=MOST.workers, batch=32, reason="more", sizes=sizes)
    nodes = [Node(f"n{n}", Resources(cpu=cpu, memory_gib=100)) for n, cpu in enumerate(cores, 1)]
    assert job.flies is not None
    return Ground(job, job.flies, want, Room(nodes), AT_ONCE)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_it_is_the_first_of_the_sizes_from_the_most_down_for_which_there_is_room(cores: list[int]) -> None:
    here = ground(*map(float, cores))
    steps = ladder(MOST, NOW)
    assert here.largest(MOST, NOW) == next(size for size in steps if size == NOW or here.holds(size))


def test_where_nothing_fits_it_stays_as_it_is_whatever_sizes_its_tasks_should_have() -> None:
    wide = RoleResources(chief=EVEN.chief, ps=replace(EVEN.ps, cpu=4.0), worker=EVEN.worker)
    assert ground(0.0, sizes=wide).largest(MOST, NOW) == NOW and ground(9.0).largest(NOW, NOW) == NOW
