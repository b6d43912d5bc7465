"""`weir submit --dry-run`: told what would happen, and nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.bus import Bus
from shared.messages import JobRequested
from tests.allocator.builders import accepted, node
from tests.cli.conftest import Prompt
from tests.cli.test_submit import GOOD, PROGRAM, written


@pytest.fixture(autouse=True)
def by_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's policy is the plainest one that grows jobs."""
    monkeypatch.setenv("WEIR_ALLOCATOR_POLICY", "config-manager")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return written(tmp_path, GOOD)


async def test_it_says_where_a_job_would_start_and_why(bus: Bus, nats_url: str, prompt: Prompt, job: Path) -> None:
    await bus.publish(node("big", cpu=4))

    said = await prompt("submit", job, "--dry-run", "--nats", nats_url)

    assert said.code == 0 and said.out.splitlines()[-3:] == [
        "job default/digits would start now with 1 ps, 1 workers, batch 32",
        "  why: the first size",
        "  where: big: chief, ps, worker",
    ]
    assert await bus.last(JobRequested, "default.digits") is None
    assert (await (await bus.programs()).status()).size == 0


async def test_it_says_why_a_job_would_wait(nats_url: str, bus: Bus, prompt: Prompt, job: Path) -> None:
    said = await prompt("submit", job, "--dry-run", "--nats", nats_url)

    assert said.out.endswith("job default/digits would wait: waits for room for a chief, 1 ps and 1 workers\n")


async def test_it_says_every_reason_against_a_job(bus: Bus, nats_url: str, prompt: Prompt, job: Path) -> None:
    said = await prompt(
        "submit", written(job.parent, GOOD + "epocs: 3\npriority: high\n"), "--dry-run", "--nats", nats_url
    )

    assert said.code == 1 and said.err.splitlines() == [
        f"weir submit: the request in {job} would be refused:",
        "  - epocs: no such field; did you mean 'epochs'?",
        "  - priority: Expected `int`, got `str`",
    ]


async def test_a_name_that_is_in_use_would_be_refused(bus: Bus, nats_url: str, prompt: Prompt, job: Path) -> None:
    await bus.publish(accepted())

    said = await prompt("submit", written(job.parent, GOOD.replace("digits", "mnist")), "--dry-run", "--nats", nats_url)

    assert "'mnist' is running already in namespace 'default'" in said.err
