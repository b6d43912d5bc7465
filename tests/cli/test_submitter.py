"""Tests of a submitter's permissions: it submits, watches and cancels in one namespace only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.__main__ import weir
from services.allocator.service import Settings, start
from services.trainer.program import REQUIRED
from shared.bus import bus as wire
from tests.cli.conftest import Prompt, closed
from tests.conftest import NatsServer
from tests.shared.secured_server import credentials, guarded

PROGRAM = "".join(f"def {name}(*_): ...\n" for name in REQUIRED)
GOOD = (
    "job: {job}\nnamespace: {namespace}\nprogram: train.py\nepochs: 2\nbatch: 32\nps:"
    " 1\nworkers: 1\n"
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with guarded(tmp_path) as running:
        service = await wire.connect(running.url, "allocator", credentials("allocator"))
        await start(service, Settings(view_s=0.05))
        yield running
        await closed(service)


@pytest.fixture
def team_a(server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(tmp_path, monkeypatch, server, credentials("submitter", "team-a.any"))


def sign_in(folder: Path, monkeypatch: pytest.MonkeyPatch, server: NatsServer, text: str) -> None:
    (folder / "own.creds").write_text(text)
    monkeypatch.setenv("WEIR_NATS_URL", server.url)
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(folder / "own.creds"))


def job(folder: Path, name: str = "mine", namespace: str = "team-a") -> Path:
    (folder / "train.py").write_text(PROGRAM)
    file = folder / f"{name}-{namespace}.yaml"
    file.write_text(GOOD.format(job=name, namespace=namespace))
    return file


@pytest.mark.usefixtures("team_a")
async def test_a_submitter_submits_lists_and_cancels_jobs(prompt: Prompt, tmp_path: Path) -> None:
    asked = await prompt("submit", job(tmp_path))
    assert "job team-a/mine is accepted" in asked.out, asked.err

    listed = await prompt("jobs", "-n", "team-a", "--json")
    assert [json.loads(line)["job"] for line in listed.out.splitlines()] in (
        [],
        ["mine"],
    )  # the job's view may not be stored yet
    events = await prompt("events", "-n", "team-a", "--job", "mine", "--json")
    assert {json.loads(line)["fact"] for line in events.out.splitlines()} >= {
        "job.requested",
        "job.accepted",
    }

    assert "job team-a/mine is cancelled\n" in (await prompt("cancel", "mine", "-n", "team-a")).out


@pytest.mark.usefixtures("team_a")
async def test_a_submitter_changes_suspends_and_resumes_only_its_jobs(
    prompt: Prompt, tmp_path: Path
) -> None:
    assert "is accepted" in (await prompt("submit", job(tmp_path))).out

    changed = await prompt(
        "change", "mine", "-n", "team-a", "--priority", "-3", "--workers", "1..8", "--ps", "1"
    )
    assert (changed.code, changed.out) == (
        0,
        "job team-a/mine has priority -3, 1 ps and 1 to 8 workers\n",
    ), changed.err
    assert (
        "saves and releases its resources" in (await prompt("suspend", "mine", "-n", "team-a")).out
    )
    assert (
        "continues as soon as there is room" in (await prompt("resume", "mine", "-n", "team-a")).out
    )

    again = await prompt("resume", "mine", "-n", "team-a")
    assert (
        again.code == 1
        and "job team-a/mine is not changed:\n  - job: 'mine' is not suspended" in again.err
    )
    too_much = await prompt("change", "mine", "-n", "team-a", "--priority", "2000000000")
    assert too_much.code == 1 and "  - priority: 2000000000 is more than 1000000000" in too_much.err
    for command in ("suspend", "resume"):
        elsewhere = await prompt(command, "mine", "-n", "team-b")
        assert elsewhere.code != 0 and "may not" in elsewhere.err

    events = await prompt("events", "-n", "team-a", "--job", "mine", "--json")
    told = [json.loads(line)["fact"] for line in events.out.splitlines()]
    assert told.count("job.changed") == 3 and told.count("job.unchanged") == 2, (
        "each request has its own answer"
    )


async def test_a_change_without_a_job_or_a_change_is_refused_before_sending(
    prompt: Prompt, tmp_path: Path, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(tmp_path, monkeypatch, server, credentials("operator"))

    nothing, nobody = await prompt("change", "mine"), await prompt("suspend", "mine")

    assert nothing.code == 2 and "no change is given" in nothing.err
    assert nobody.code == 1 and "there is no job default/mine" in nobody.err


@pytest.mark.parametrize(
    "words", [["--workers", "8..1"], ["--workers", "0..2"], ["--ps", "many"], ["--priority", "1.5"]]
)
def test_impossible_changes_are_wrong_use(words: list[str]) -> None:
    assert weir(["change", "mine", *words]) == 2


@pytest.mark.usefixtures("team_a")
async def test_a_submitter_has_no_access_to_other_namespaces(
    prompt: Prompt, tmp_path: Path, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (
        ("submit", job(tmp_path, namespace="team-b")),
        ("jobs",),
        ("events", "-n", "team-b"),
    ):
        said = await prompt(*words)
        assert said.code != 0 and "may not" in said.err, (words, said)

    sign_in(tmp_path, monkeypatch, server, credentials("operator"))
    assert "job.requested" not in (await prompt("events", "--json")).out


async def test_an_operator_sees_all_namespaces(
    prompt: Prompt, tmp_path: Path, server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(tmp_path, monkeypatch, server, credentials("operator"))

    for namespace in ("team-a", "team-b"):
        assert "is accepted" in (await prompt("submit", job(tmp_path, namespace=namespace))).out
    seen = (await prompt("events", "--json")).out
    assert "team-a" in seen and "team-b" in seen


async def test_missing_credentials_are_an_error(prompt: Prompt, server: NatsServer) -> None:
    said = await prompt("jobs", "--nats", server.url)

    assert said.code != 0 and "answers, but requires credentials" in said.err


@pytest.mark.usefixtures("team_a")
async def test_a_submitter_sees_its_own_jobs_uid_and_end(prompt: Prompt, tmp_path: Path) -> None:
    """The intake has its own sequence numbers, and an earlier job of the name may have ended."""
    for uid in (1, 5):  # four messages each: requested, accepted, cancel requested, finished
        assert f"is accepted (uid {uid})" in (await prompt("submit", job(tmp_path))).out
        said = await prompt("cancel", "mine", "-n", "team-a")
        assert said.code == 0 and "job team-a/mine is cancelled" in said.out, said.err
