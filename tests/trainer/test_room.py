"""A second value of all that the ps hold: only where the next generation's children still fit
beside it.
"""

from __future__ import annotations

from services.trainer.room import GIB, UNKNOWN, Spare, lacking, spare, task_of
from shared.messages import TaskUsage
from tests.trainer.builders import spec

TWO = spec(1, pods=["chief-0", "ps-3", "ps-4", "worker-0"])


def used(name: str, left: float | None) -> dict[str, TaskUsage]:
    return {name: TaskUsage(task=name, cpu=0.1, memory_gib=0.5, spare_gib=left)}


def test_the_fullest_ps_counts_and_other_tasks_do_not() -> None:
    usage = (
        used("ps-3", 2.0)
        | used("ps-4", 0.5)
        | used("worker-0", 0.0)
        | used("chief-0", 0.0)
        | used("ps-9", 0.0)
    )
    assert spare(TWO, usage) == Spare(0.5)


def test_as_long_as_one_ps_has_not_said_what_it_uses_nothing_is_known() -> None:
    assert spare(TWO, used("ps-3", 2.0)) is None
    assert lacking(1, None) == UNKNOWN


def test_without_a_limit_there_is_room() -> None:
    assert spare(TWO, used("ps-3", None) | used("ps-4", None)) == Spare(None)
    assert lacking(1 << 50, Spare(None)) == ""


def test_it_is_needed_twice_because_the_next_generation_holds_as_much() -> None:
    assert lacking(GIB, Spare(2.0)) == ""
    assert lacking(GIB + 1, Spare(2.0)).startswith(
        "a ps has 2.00 GiB left beside its next generation, and 2.00 are"
    )


def test_a_ps_over_its_limit_has_nothing_left() -> None:
    assert "has 0.00 GiB left" in lacking(GIB, Spare(-0.3))


def test_a_pod_is_known_by_its_task_whatever_its_job_is_called() -> None:
    assert [task_of(pod) for pod in ("my-ps-job-ps-12", "ps-12")] == ["ps-12", "ps-12"]
