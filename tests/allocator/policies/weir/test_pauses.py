"""What a change costs each job."""

from __future__ import annotations

from services.allocator.policies.contract import PAUSE_S, JobSeen, Kin
from services.allocator.policies.weir.pauses import pauses
from shared.messages import Program, RoleResources
from tests.allocator.builders import request


def job(program: str, pause_s: float | None = None, kin: Kin | None = None) -> JobSeen:
    asked = request(program=Program(name=program, digest=program))
    return JobSeen(key="j", request=asked, sizes=RoleResources(), submitted_s=0.0, pause_s=pause_s, kin=kin)


def test_what_was_measured_of_a_job_counts_for_it():
    assert pauses([job("a", 250.0), job("a", 30.0)]) == [250.0, 30.0]


def test_before_its_first_pause_a_job_is_taken_to_pause_as_others_of_its_program():
    over = Kin(pause_s=60.0)
    assert pauses([job("a", 20.0), job("a", 40.0), job("a"), job("b", 9.0)])[2] == 30.0
    assert pauses([job("a", kin=over), job("a", 40.0, over), job("b", 9.0)])[0] == 50.0


def test_a_program_of_which_nobody_paused_is_taken_to_be_like_the_median_one():
    assert pauses([job("a", 1.0), job("b", 30.0), job("c", 250.0), job("new")])[3] == 30.0


def test_before_anybody_paused_a_setting_is_taken():
    assert pauses([job("a"), job("b", kin=Kin())]) == [PAUSE_S, PAUSE_S]


def test_a_mean_that_moves_by_little_is_the_same():
    assert pauses([job("a", 30.0), job("a")])[1] == pauses([job("a", 30.2), job("a")])[1]
