"""Tests of `weir forget`: it removes a job from the bus, and its checkpoints on request."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.allocator.service import Settings, start
from services.cli.forget import _confirm_removal
from services.trainer.program import REQUIRED
from shared.bus import bus as wire
from shared.messages import JobAccepted
from tests.cli.conftest import Prompt, closed
from tests.conftest import NatsServer
from tests.shared.secured_server import credentials, guarded

PROGRAM = "".join(f"def {name}(*_): ...\n" for name in REQUIRED)
GOOD = "job: mine\nnamespace: team-a\nprogram: train.py\nepochs: 2\nbatch: 32\nps: 1\nworkers: 1\n"
IN_TEAM_A = ("-n", "team-a")


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NatsServer]:
    """Yield a bus with an allocator, with a submitter of team-a signed in.

    The allocator runs in this process. Its log is captured, so that it is not in the commands'
    output.
    """
    async with guarded(tmp_path) as running:
        service = await wire.connect(running.url, "allocator", credentials("allocator"))
        await start(service, Settings(view_s=0.05))
        (tmp_path / "own.creds").write_text(credentials("submitter", "team-a.any"))
        monkeypatch.setenv("WEIR_NATS_URL", running.url)
        monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "own.creds"))
        with capture_logs():
            yield running
        await closed(service)


async def submitted(prompt: Prompt, server: NatsServer, folder: Path) -> Path:
    """Submit the job; return the folder of its checkpoints, with one in it."""
    (folder / "train.py").write_text(PROGRAM)
    (folder / "mine.yaml").write_text(GOOD)
    asked = await prompt("submit", folder / "mine.yaml")
    assert "job team-a/mine is accepted" in asked.out, asked.err
    operator = await wire.connect(server.url, "operator", credentials("operator"))
    heard = await operator.last_message(JobAccepted, "team-a.mine")
    await closed(operator)
    assert heard is not None and isinstance(heard.message, JobAccepted)
    own = folder / "checkpoints" / heard.message.checkpoint_folder
    (own / "gen-1").mkdir(parents=True)
    return own


async def test_a_submitter_forgets_a_finished_job_and_may_keep_its_checkpoints(
    prompt: Prompt, tmp_path: Path, server: NatsServer
) -> None:
    own, checkpoints = await submitted(prompt, server, tmp_path), tmp_path / "checkpoints"
    too_soon = await prompt("forget", "mine", *IN_TEAM_A)
    assert (
        too_soon.code == 1
        and "job team-a/mine is not over; `weir cancel mine` stops it" in too_soon.err
    )
    elsewhere = await prompt("forget", "mine", "-n", "team-b")
    assert elsewhere.code != 0 and "may not" in elsewhere.err

    await prompt("cancel", "mine", *IN_TEAM_A)
    said = await prompt("forget", "mine", *IN_TEAM_A, "--folder", checkpoints)
    assert said.out.endswith(f"job team-a/mine is forgotten\nits checkpoints stay: {own}\n"), (
        said.err
    )
    assert own.is_dir() and "there is no job" in (await prompt("forget", "mine", *IN_TEAM_A)).err

    again = await submitted(prompt, server, tmp_path)
    await prompt("cancel", "mine", *IN_TEAM_A)
    said = await prompt("forget", "mine", *IN_TEAM_A, "--checkpoints", "--folder", checkpoints)
    assert said.out.endswith(
        f"job team-a/mine is forgotten\nits checkpoints are removed: {again}\n"
    ), said.err
    assert not again.exists() and own.is_dir()


async def test_checkpoints_stay_while_another_job_continues_from_them(
    prompt: Prompt, tmp_path: Path, server: NatsServer
) -> None:
    own, checkpoints = await submitted(prompt, server, tmp_path), tmp_path / "checkpoints"
    await prompt("cancel", "mine", *IN_TEAM_A)
    place = own.relative_to(checkpoints)
    (tmp_path / "next.yaml").write_text(
        GOOD.replace("job: mine", "job: next") + f"checkpoint: {{continue_from: {place}}}\n"
    )
    assert "is accepted" in (await prompt("submit", tmp_path / "next.yaml")).out

    said = await prompt("forget", "mine", *IN_TEAM_A, "--checkpoints", "--folder", checkpoints)

    stay = "its checkpoints stay: job team-a/next continues from them and is not over"
    assert said.out.endswith(f"job team-a/mine is forgotten\n{stay}\n"), said.err
    assert own.is_dir()


@pytest.mark.parametrize(("answer", "wanted"), [("y", True), ("", False), ("n", False)])
def test_forget_asks_for_confirmation_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, answer: str, wanted: bool
) -> None:
    ours, theirs = os.openpty()
    with (
        os.fdopen(ours, "r+b", buffering=0) as person,
        os.fdopen(theirs, "r") as keys,
        open(os.ttyname(theirs), "w") as screen,
    ):
        monkeypatch.setattr("sys.stdin", keys)
        monkeypatch.setattr("sys.stdout", screen)
        person.write(f"{answer}\n".encode())
        assert _confirm_removal(Path("here")) is wanted
        monkeypatch.undo()
