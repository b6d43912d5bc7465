"""Tests of the example policy: in the simulator, in `weir decide`, and live, selected by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.custom_policies import register_policies
from services.allocator.policies.contract import JobSnapshot, Node, Size
from services.allocator.policies.registry import POLICIES
from shared.bus.bus import Bus
from shared.messages import AllocationDecided, JobAccepted, JobRejected, Resources
from tests.allocator.builders import EVEN, node, request, size, span
from tests.allocator.test_service import QUICK, allocator, last, with_program
from tests.cli.test_decide import NODES, answers, document
from tests.cli.test_simulate import CLUSTER, JOBS, SURFACES, simulate, told

FILE = Path(__file__).parents[2] / "deploy" / "policies" / "fewest_first.py"
NAME = "deploy.policies.fewest_first:fewest_first"
LINES = 35


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Remove the policies that a test adds: other tests expect only Weir's own."""
    before = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the input files of `weir simulate`: six jobs on three machines."""
    for name, text in (("jobs.csv", JOBS), ("surfaces.csv", SURFACES), ("cluster.yaml", CLUSTER)):
        (tmp_path / name).write_text(text)
    return tmp_path


def sizes(cores: float, *jobs: JobSnapshot) -> dict[str, int]:
    register_policies([NAME])
    free = Resources(cpu=cores, memory_gib=64)
    return {want.job: want.workers for want in POLICIES[NAME]([Node("n1", free, free)], jobs, 0.0)}


def job(name: str, workers: int, most: int = 9, **fields: Any) -> JobSnapshot:
    asked = request(name, workers=span(1, most=most))
    running: dict[str, Any] = {"size": Size(1, workers), "batch": 32} if workers else {}
    return JobSnapshot(key=name, request=asked, sizes=EVEN, submitted_s=0.0, **(running | fields))


def test_the_example_policy_is_short() -> None:
    assert len(FILE.read_text().splitlines()) <= LINES


def test_the_job_with_the_fewest_workers_gets_the_next_one() -> None:
    assert sizes(5, job("a", 3), job("b", 1)) == {"a": 5, "b": 4}
    assert sizes(2, job("a", 3), job("b", 1)) == {"a": 3, "b": 3}
    assert sizes(6, job("a", 3), job("b", 1, most=2)) == {"a": 8, "b": 2}


def test_a_new_job_gets_its_first_size_and_a_resizing_job_is_left_alone() -> None:
    assert sizes(4, job("a", 0), job("b", 2, busy=True), job("c", 2)) == {"a": 1, "c": 6}


def test_the_example_policy_can_be_simulated_by_name(folder: Path) -> None:
    figures = told(folder, "--policies", f"static,{NAME}")

    assert figures[NAME]["completed"] == figures["static"]["completed"] == 6
    assert figures[NAME]["makespan_s"] < figures["static"]["makespan_s"]


@pytest.mark.usefixtures("failures_set_aside")
def test_an_error_of_the_policy_in_a_simulation_is_shown_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "slips.py").write_text("def mine(cluster, jobs, now):\n    return jobs[99]\n")

    assert simulate(folder, "--policies", "slips:mine") == 1
    said = capsys.readouterr().err
    assert (
        "policy slips:mine failed with 6 jobs" in said
        and "slips.py" in said
        and "line 2, in mine" in said
    )


def test_the_example_policy_works_with_weir_decide() -> None:
    larger = [*NODES, {"name": "n2", "cpu": 2, "memory_gib": 8}]
    runs = {"chief": "n1", "ps": ["n1"], "workers": ["n1"], "batch": 64, "since_s": 0}

    _, grown = answers(document(0, NODES), document(600, larger, current=runs), policy=NAME)

    assert sorted(grown["decisions"][0]["workers"]) == ["n1", "n2", "n2"]
    assert grown["decisions"][0]["reason"] == "the job with the fewest workers gets the next"


async def test_the_example_policy_decides_live_for_a_request_that_names_it(
    nats_url: str, person: Bus
) -> None:
    await person.publish(node(cpu=4))
    async with allocator(nats_url, replace(QUICK, policies=(NAME,))):
        await person.publish(await with_program(person, policy=NAME))
        answer = await last(person, JobAccepted)
        decided = await last(person, AllocationDecided)
        await person.publish(await with_program(person, job="other", policy="os:system"))
        refused = await last(person, JobRejected, "default.other")

    assert (
        answer.request.policy == NAME
        and decided.reason == "its first size"
        and size(decided) == (1, 1)
    )
    one_of_ones_own = "a custom policy needs WEIR_ALLOCATOR_POLICIES=os:system"
    assert refused.reasons == (
        (
            f"policy: 'os:system' is not known; use one of {', '.join(sorted({*POLICIES}))};"
            f" {one_of_ones_own}"
        ),
    )


def test_the_commands_in_the_policys_docstring_use_its_real_name() -> None:
    assert FILE.read_text().count(NAME) == 2
