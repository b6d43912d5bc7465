"""The schedule of an hour: enough of each kind, on those who train, and inside hand-overs."""

from __future__ import annotations

from tests.bench.chaos.schedule import BY_NAME, INSIDE, counted, schedule

FAULTS, LEAST, TRAINING, INSIDE_LEAST = 92, 4, 30, 10


def test_an_hour_has_four_faults_of_every_kind_and_more_of_the_hard_ones() -> None:
    for seed in range(1, 20):
        faults = schedule(seed, FAULTS)
        assert counted(faults) == dict.fromkeys(BY_NAME, LEAST)
        assert sum(fault.trains for fault in faults) >= TRAINING
        assert sum(fault.inside for fault in faults) >= INSIDE_LEAST


def test_four_faults_of_a_kind_hit_each_of_its_targets() -> None:
    faults = schedule(1, FAULTS)
    for kind in BY_NAME.values():
        assert {fault.who for fault in faults if fault.kind == kind.name} == {*kind.who}


def test_a_fault_is_scheduled_only_where_it_is_allowed() -> None:
    for fault in schedule(2, FAULTS):
        assert any(fault.moment in moments for moments in BY_NAME[fault.kind].moments)
        assert fault.inside == (fault.moment in INSIDE)


def test_the_schedule_is_a_function_of_the_seed() -> None:
    assert schedule(3, 12) == schedule(3, 12) != schedule(4, 12)
    assert len({fault.kind for fault in schedule(3, 12)}) == 12


def test_a_short_run_may_name_its_kinds_of_faults() -> None:
    assert counted(schedule(1, 6, ("ps killed", "disk full"))) == {"ps killed": 3, "disk full": 3}
