"""Tests of speed surfaces, loss curves and cluster files.

A surface has the measured speeds, is continuous between the points and gains nothing beyond them. A
cluster file is refused with every reason.
"""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.contract import Quota
from services.whatif.simulator.scenario import Curve, Measured, Surface, read_cluster
from shared.documents import InvalidFile
from tests.whatif.simulator.worlds import DEVICES, SPEEDS, surfaces

NET, RING = surfaces()["net"], surfaces()["ring"]
FALLING = Surface([Measured(1, 1, 64, 100.0), Measured(1, 2, 64, 120.0), Measured(1, 4, 64, 60.0)])
SIZES = st.integers(1, 64)


@pytest.mark.parametrize("size", SPEEDS)
def test_a_measured_point_has_its_speed(size: tuple[int, int]) -> None:
    assert NET.speed(*size, 64) == pytest.approx(SPEEDS[size])


def test_speed_is_interpolated_in_logarithms() -> None:
    surface = Surface([Measured(1, 1, 64, 100.0), Measured(1, 4, 64, 400.0)])
    assert surface.speed(1, 2, 64) == pytest.approx(200.0)
    curved = Surface([Measured(1, 2, 64, 100.0), Measured(1, 8, 64, 225.0)])
    assert curved.speed(1, 4, 64) == pytest.approx(sqrt(100.0 * 225.0))


def test_speed_is_interpolated_between_numbers_of_ps() -> None:
    surface = Surface([Measured(p, w, 64, float(p * w)) for p in (1, 4) for w in (1, 4)])
    assert surface.speed(2, 2, 64) == pytest.approx(4.0)


def test_a_rising_surface_is_flat_beyond_its_last_point() -> None:
    assert NET.speed(1, 64, 64) == pytest.approx(300.0)
    assert NET.speed(9, 4, 64) == pytest.approx(360.0)
    assert NET.speed(1, 4, 6400) == pytest.approx(300.0)


def test_a_falling_surface_continues_to_fall() -> None:
    assert FALLING.speed(1, 8, 64) == pytest.approx(30.0)


def test_below_the_first_point_speed_is_proportional() -> None:
    surface = Surface([Measured(2, 4, 64, 100.0)])
    assert surface.speed(2, 2, 64) == pytest.approx(50.0)
    assert surface.speed(1, 4, 64) == pytest.approx(50.0)
    assert surface.speed(2, 4, 16) == pytest.approx(25.0)


@given(SIZES, SIZES, st.integers(1, 4096))
def test_no_speed_exceeds_the_fastest_measured_one(ps: int, workers: int, batch: int) -> None:
    assert 0 < NET.speed(ps, workers, batch) <= max(SPEEDS.values()) * (1 + 1e-9)
    assert 0 < FALLING.speed(ps, workers, batch) <= 120.0 * (1 + 1e-9)


def test_devices_without_ps_have_their_own_surface() -> None:
    assert [RING.speed(0, k, 64) for k in DEVICES] == pytest.approx(list(DEVICES.values()))
    assert RING.speed(0, 2, 64 * sqrt(2)) == pytest.approx(95.0 * sqrt(1.5))
    assert RING.speed(1, 2, 64) == 0.0 and NET.speed(0, 2, 64) == 0.0


def test_without_workers_there_is_no_speed() -> None:
    assert NET.speed(1, 0, 64) == 0.0 and Surface([]).speed(1, 1, 1) == 0.0


def test_repeated_measurements_are_averaged() -> None:
    assert Surface([Measured(1, 1, 64, 90.0), Measured(1, 1, 64, 160.0)]).speed(
        1, 1, 64
    ) == pytest.approx(120.0)


def test_a_curve_is_straight_between_its_points_and_flat_outside_them() -> None:
    curve = Curve([(300, 1.0), (100, 2.0)])
    assert [curve.at(samples) for samples in (0, 100, 150, 200, 300, 900)] == [
        2.0,
        2.0,
        1.75,
        1.5,
        1.0,
        1.0,
    ]


def test_a_curve_needs_a_point() -> None:
    with pytest.raises(ValueError, match="needs a point"):
        Curve([])


GOOD = """\
nodes:
  - {count: 2, cpu: 4, memory_gib: 8, name: small}
  - {cpu: 16, memory_gib: 64, gpu: 2, name: big}
tenants:
  - {node: small-2, cpu: 1.5, from_s: 30, to_s: 90}
"""
BAD = """\
nodes:
  - {count: 0, cpu: many}
  - {cpu: 4, memery_gib: 8}
  - 7
tenants:
  - {node: small-1}
pods: []
"""


def refused(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as bad:
        read_cluster(text)
    return str(bad.value).splitlines()


def test_nodes_by_name_and_tenants() -> None:
    read = read_cluster(GOOD)
    assert {name: (has.cpu, has.gpu) for name, has in read.resources_by_node().items()} == {
        "small-1": (4, 0),
        "small-2": (4, 0),
        "big": (16, 2),
    }
    (tenant,) = read.tenants
    assert (tenant.node, tenant.cpu, tenant.from_s, tenant.to_s) == ("small-2", 1.5, 30.0, 90.0)


def test_nodes_need_no_names() -> None:
    assert list(read_cluster("nodes: [{cpu: 4}]").resources_by_node()) == ["node"]
    assert list(read_cluster("nodes: [{cpu: 4}, {count: 2, cpu: 8}]").resources_by_node()) == [
        "node-a",
        "node-b-1",
        "node-b-2",
    ]


def test_every_error_is_listed_with_line_and_column() -> None:
    assert refused(BAD) == [
        "line 2, column 13: nodes[0].count: Expected `int` >= 1, got 0",
        "line 2, column 21: nodes[0].cpu: Expected `float`, got 'many'",
        "line 3, column 26: nodes[1].memery_gib: no such field; did you mean 'memory_gib'?",
        "line 4, column 5: nodes[2]: is not a mapping",
        "line 6, column 5: tenants[0].cpu: is required",
        "line 7, column 7: pods: no such section; use nodes, tenants, quotas",
    ]


def test_node_names_and_tenants_are_checked() -> None:
    wrong = GOOD.replace("name: big", "name: small-1").replace(
        "cpu: 1.5, from_s: 30", "cpu: 5, from_s: 100"
    )
    assert refused(wrong) == [
        "line 2, column 45: nodes[0].name: 'small-1' occurs 2 times",
        "line 3, column 45: nodes[1].name: 'small-1' occurs 2 times",
        "line 5, column 26: tenants[0].cpu: 'small-2' has 4 cores",
        "line 5, column 48: tenants[0].to_s: must be later than from_s",
    ]
    assert refused(GOOD.replace("small-2", "small-3")) == [
        "line 5, column 12: tenants[0].node: there is no node 'small-3'"
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: a cluster file is a mapping with `nodes` and perhaps `tenants`"),
        ("nodes: []", "line 1, column 8: nodes: at least one is required"),
        ("nodes: 4", "line 1, column 8: nodes: is not a list"),
        ("nodes: [", "line 1, column 9: not valid YAML"),
        ("nodes: [{cpu: 1}]\ntenants: x", "line 2, column 10: tenants: is not a list"),
    ],
)
def test_a_text_that_is_no_cluster_file_is_refused(text: str, why: str) -> None:
    assert refused(text)[0].startswith(why)


def test_quotas_are_read_and_every_error_is_listed() -> None:
    read = read_cluster(GOOD + "quotas: {team-a: {cpu: 4, gpu: 1}, team-b: {}}\n")
    assert read.quotas == {"team-a": Quota(cpu=4, gpu=1), "team-b": Quota()}
    wrong = "quotas:\n  Team: {cpu: 1}\n  team-a: {cpu: many, memery_gib: 3}\n"
    told = refused(GOOD + wrong)
    assert told[0].startswith("line 7, column 3: quotas: Expected a name: lower-case letters")
    assert told[0].endswith(", got 'Team'")
    assert told[1:] == [
        "line 8, column 17: quotas.team-a.cpu: Expected `float | null`, got 'many'",
        "line 8, column 35: quotas.team-a.memery_gib: no such field; did you mean 'memory_gib'?",
    ]
    assert "quotas" in refused(GOOD + "quotas: [4]\n")[0]
