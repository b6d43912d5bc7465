"""Whose log is shown."""

from __future__ import annotations

import pytest

from services.cli.pod_choice import Pod, choose
from services.cli.trouble import Trouble

PODS = [
    Pod("digits-chief-0", "chief", 1.0),
    Pod("digits-worker-1", "worker", 1.0),
    Pod("digits-worker-11", "worker", 2.0),
    Pod("digits-chief-12", "chief", 3.0),
]


def test_without_a_task_it_is_the_newest_chief() -> None:
    assert choose(PODS, None).name == "digits-chief-12"


def test_a_task_is_found_by_the_end_of_its_pods_name_and_not_by_a_part_of_it() -> None:
    assert (
        choose(PODS, "worker-1").name == choose(PODS, "digits-worker-1").name == "digits-worker-1"
    )


def test_a_role_is_its_newest_task() -> None:
    assert choose(PODS, "worker").name == "digits-worker-11"


def test_a_task_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(
        Trouble,
        match="no pod of 'ps-0'; there are digits-chief-0, digits-chief-12, digits-worker-1",
    ):
        choose(PODS, "ps-0")


def test_a_job_without_pods_is_told_so() -> None:
    with pytest.raises(Trouble, match="there are none of this job"):
        choose([], None)
