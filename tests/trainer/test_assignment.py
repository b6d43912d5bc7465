"""Who prepares beside a generation that trains stands back; who begins a job tries everything."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.trainer.assignment import assignment
from services.trainer.orders import Assignment
from services.trainer.settings import Settings
from tests.trainer.builders import spec

MINE = Settings(
    job="digits",
    uid=7,
    pod="worker-1",
    pod_uid="u",
    role="worker",
    serial=1,
    memory_gib=2.0,
    stuck_s=9.0,
)
PODS = ["chief-0", "ps-0", "worker-0", "worker-1"]


def made(previous: int | None = None, **more: Any) -> Assignment:
    how = {"fresh": False, "follows": previous is not None, "nice": 5, **more}
    return assignment(spec(2, previous, pods=PODS), MINE, "/p/net.py", **how)


def test_a_child_is_told_its_place_and_everybodys_address() -> None:
    told = made()

    assert (told.generation, told.role, told.index, told.batch) == (2, "worker", 1, 32)
    assert told.cluster == {"chief": ["h:1"], "ps": ["h:1"], "worker": ["h:1", "h:1"]}


def test_a_child_is_told_what_its_pod_was() -> None:
    told = made()

    assert (told.program, told.checkpoint_dir, told.stuck_s) == ("/p/net.py", "/checkpoints", 9.0)
    assert (told.resources.cpu, told.resources.memory_gib) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("how", "nice", "warms_up", "first"),
    [
        ({}, 0, False, True),
        ({"follows": True}, 0, False, False),
        ({"previous": 1}, 5, True, False),
        ({"previous": 1, "fresh": True}, 5, False, False),
        ({"previous": 1, "nice": 0}, 0, True, False),
    ],
    ids=[
        "begins-the-job",
        "after-everything-was-lost",
        "beside-another",
        "after-another-stopped",
        "may-not-be-nice",
    ],
)
def test_how_a_child_prepares_depends_on_what_was_before(
    how: dict[str, Any], nice: int, warms_up: bool, first: bool
) -> None:
    told = made(**how)

    assert (told.nice, told.warms_up, told.first) == (nice, warms_up, first)


def test_a_child_is_told_for_how_long_the_cluster_was_off() -> None:
    told = assignment(
        replace(spec(2, pods=PODS), off_s=600.0), MINE, "/p", fresh=False, follows=True, nice=0
    )

    assert told.off_s == 600.0


def test_who_is_no_member_gets_no_child() -> None:
    with pytest.raises(AssertionError, match="only members start children"):
        assignment(spec(2), MINE, "/p/net.py", fresh=False, follows=False, nice=0)
