"""Tests of the warning for a job that fits no node; it is accepted, as a larger node may come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.allocator.job_views import JobView
from services.allocator.service import Settings, start
from services.cli import submit
from services.cli.submit import size_warning
from services.trainer.program import REQUIRED
from shared.bus import bus as wire
from shared.bus.bus import Bus
from tests.allocator.builders import accepted, node, request
from tests.cli.conftest import Prompt, closed

PROGRAM = "".join(f"def {name}(*_): ...\n" for name in REQUIRED)
NEVER = (
    "no node is large enough for a ps: it needs 100 cpu, 1 GiB, and the largest has 0.5 cpu, 64 GiB"
)


@pytest.fixture
async def cluster(bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Start the real allocator on a node of half a core."""
    monkeypatch.setattr(submit, "WORD_S", 60.0)
    await bus.publish(node("small", cpu=0.5))
    service = await wire.connect(nats_url, "allocator")
    await start(service, Settings(view_s=0.05))
    yield
    await closed(service)


def job(folder: Path, cpu: float, policy: str = "weir") -> Path:
    (folder / "train.py").write_text(PROGRAM)
    file = folder / "job.yaml"
    tasks = f"{{chief: {{cpu: 0.1}}, ps: {{cpu: {cpu}}}, worker: {{cpu: 0.1}}}}"
    asked = f"epochs: 1\nbatch: 32\nps: 1\nworkers: 1\npolicy: {policy}\n"
    file.write_text(f"job: mine\nprogram: train.py\n{asked}resources: {tasks}\n")
    return file


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("policy", ["config-manager", "dike", "dlrover", "static", "weir"])
async def test_a_request_larger_than_any_node_has_a_warning(
    nats_url: str, prompt: Prompt, tmp_path: Path, policy: str
) -> None:
    said = await prompt("submit", job(tmp_path, 100, policy), "--nats", nats_url)

    warned, advice = said.err.splitlines()
    assert said.code == 0 and said.out.endswith("job default/mine is accepted (uid 1)\n")
    assert warned == f"weir submit: it was accepted, but {NEVER}. It waits for a larger node"
    assert advice.startswith("watch it: ")


@pytest.mark.usefixtures("cluster")
async def test_a_request_that_fits_a_node_has_no_warning(
    nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    said = await prompt("submit", job(tmp_path, 0.1), "--nats", nats_url)

    assert said.code == 0 and len(said.err.splitlines()) == 1


async def test_the_size_check_does_not_wait_without_a_view(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "WORD_S", 0.1)

    assert await submit.warn_if_too_large(bus, accepted(request())) == ""


def test_other_waiting_reasons_are_no_warning() -> None:
    view = JobView(
        job="mine", namespace="default", uid=1, phase="Pending", why="waits for room for a chief"
    )

    assert size_warning(view) == ""
