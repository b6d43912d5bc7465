"""Tests of `weir credentials`: a server accepts the files, and the commands find them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Prompt
from tests.conftest import NatsServer


async def test_a_server_with_the_written_files_accepts_their_credentials(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await prompt("credentials", tmp_path / "all", "--submitter", "team-a")
    assert {Path(line).name for line in written.out.splitlines()} >= {
        "auth.conf",
        "submitter.team-a.creds",
    }
    server = NatsServer(tmp_path / "nats", "-c", str(tmp_path / "all" / "auth.conf"))
    await server.start()
    monkeypatch.setenv("WEIR_NATS_URL", server.url)
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "all" / "operator.creds"))

    made = await prompt("streams", "create")  # with setup.creds, found beside operator.creds
    there = await prompt("streams", "verify")
    listed = await prompt("jobs")

    assert (made.code, there.code, listed.code) == (0, 0, 0), (made, there, listed)
    assert "there are no jobs" in listed.err
    await server.kill()


async def test_missing_credentials_are_distinguished_from_an_unreachable_server(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for whose in ("theirs", "ours"):
        await prompt("credentials", tmp_path / whose)
    server = NatsServer(tmp_path / "nats", "-c", str(tmp_path / "theirs" / "auth.conf"))
    await server.start()
    monkeypatch.chdir(tmp_path)

    without = await prompt("jobs", "--nats", server.url)
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "ours" / "operator.creds"))
    stranger = await prompt("jobs", "--nats", server.url)
    await server.kill()

    for said, told in (
        (without, "requires credentials."),
        (stranger, "refuses these credentials."),
    ):
        first, advice = said.err.splitlines()
        assert (
            said.code == 1
            and first == f"weir jobs: NATS at {server.url} (--nats) answers, but {told}"
        ), said
        assert (
            "WEIR_NATS_CREDENTIALS=FILE" in advice and ".weir/credentials/operator.creds" in advice
        )


async def test_unwritable_credentials_are_an_error(prompt: Prompt, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{")
    broken = await prompt("credentials", tmp_path)
    nowhere = await prompt("credentials", tmp_path / "keys.json" / "below")
    wrong = await prompt("credentials", tmp_path, "--tls", "missing.crt", "missing.key")

    for said in (broken, nowhere, wrong):
        assert said.code == 1 and said.err.startswith(
            "weir credentials: cannot write credentials: "
        ), said


async def test_invalid_credentials_are_an_error(
    prompt: Prompt, tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.creds").write_text("hello")
    for name, told in (
        ("odd.creds", "not NATS credentials"),
        ("none.creds", "No such file"),
    ):
        monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / name))
        said = await prompt("jobs", "--nats", nats_url)
        assert said.code == 1 and told in said.err, said
