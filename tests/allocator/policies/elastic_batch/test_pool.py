"""What jobs share, and what workers cost of it."""

from __future__ import annotations

from services.allocator.policies.contract import JobSeen, Node
from services.allocator.policies.elastic_batch.pool import core_pool, cores, device_pool, ps_beside
from shared.messages import Resources, RoleResources
from tests.allocator.builders import request, span

SIZES = RoleResources(
    chief=Resources(cpu=0.25), ps=Resources(cpu=0.25), worker=Resources(cpu=0.5, gpu=2)
)


def job(**fields: object) -> JobSeen:
    asked = request(**({"ps": span(2, most=3), "workers": span(4, most=9)} | fields))
    return JobSeen(key="default.mnist", request=asked, sizes=SIZES, submitted_s=0.0)


def test_ps_follow_the_ratio_of_the_start_within_their_bounds():
    assert [ps_beside(job(), workers) for workers in (1, 2, 3, 4, 5, 9)] == [1, 1, 2, 2, 3, 3]


def test_a_price_has_the_chief_and_the_ps_in_it():
    assert cores(job(), 4) == 250 + 2 * 250 + 4 * 500


def test_a_unit_divides_every_task_and_what_a_node_has_beside_it_is_lost():
    pool = core_pool(
        [Node("a", Resources(cpu=0.9)), Node("b", Resources(cpu=0.6))], [job()], taken=0
    )
    assert (pool.units, pool.unit) == (3 + 2, 250)
    assert pool.cost(job(), 4) == 1 + 2 + 8
    assert core_pool([Node("a", Resources(cpu=0.9))], [job()], taken=300).units == 3 - 2


def test_a_large_cluster_is_counted_in_coarser_units():
    pool = core_pool([Node("a", Resources(cpu=5000))], [job()], taken=0)
    assert pool.units <= 2048 and pool.cost(job(), 1) == 1


def test_devices_are_counted_one_by_one():
    pool = device_pool(
        [Node("a", Resources(gpu=4)), Node("b", Resources(gpu=4), open=False)], [job()]
    )
    assert (pool.units, pool.cost(job(), 3)) == (4, 6)
