"""Tests of the memory for a second copy of all values on the ps.

A copy is made only if the children of the next generation still fit beside it.
"""

from __future__ import annotations

from services.trainer.pod.usage import memory_headroom, task_in_job
from services.trainer.protocol import MemoryHeadroom
from services.trainer.worker.saving import HEADROOM_UNKNOWN, copy_obstacle
from shared.messages import GIB, TaskUsage
from tests.trainer.builders import spec

TWO = spec(1, pods=["chief-0", "ps-3", "ps-4", "worker-0"])


def used(name: str, left: float | None) -> dict[str, TaskUsage]:
    return {name: TaskUsage(task=name, cpu=0.1, memory_gib=0.5, spare_gib=left)}


def test_the_headroom_is_that_of_the_fullest_ps() -> None:
    usage = (
        used("ps-3", 2.0)
        | used("ps-4", 0.5)
        | used("worker-0", 0.0)
        | used("chief-0", 0.0)
        | used("ps-9", 0.0)
    )
    assert memory_headroom(TWO, usage) == MemoryHeadroom(gib=0.5)


def test_without_the_usage_of_every_ps_the_headroom_is_unknown() -> None:
    assert memory_headroom(TWO, used("ps-3", 2.0)) is None
    assert copy_obstacle(1, None) == HEADROOM_UNKNOWN


def test_without_a_limit_a_copy_fits() -> None:
    assert memory_headroom(TWO, used("ps-3", None) | used("ps-4", None)) == MemoryHeadroom(gib=None)
    assert copy_obstacle(1 << 50, MemoryHeadroom(gib=None)) == ""


def test_a_copy_needs_headroom_for_two_generations() -> None:
    assert copy_obstacle(GIB, MemoryHeadroom(gib=2.0)) == ""
    assert copy_obstacle(GIB + 1, MemoryHeadroom(gib=2.0)).startswith(
        "a ps has 2.00 GiB left beside its next generation, and 2.00 are"
    )


def test_a_ps_above_its_limit_has_no_headroom() -> None:
    assert "has 0.00 GiB left" in copy_obstacle(GIB, MemoryHeadroom(gib=-0.3))


def test_the_task_of_a_pod_is_recognised_for_any_job_name() -> None:
    assert [task_in_job(pod) for pod in ("my-ps-job-ps-12", "ps-12")] == ["ps-12", "ps-12"]
