"""Tests of how a command finds its NATS server, and of the error if there is none or it has no
JetStream.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nats.js.errors import ServiceUnavailableError

from services.cli.connection import (
    FILE,
    USUAL,
    Connection,
    _explain_failure,
    find_connection,
)
from services.console.trouble import Trouble
from tests.cli.conftest import Prompt
from tests.conftest import NatsServer

UP, KUBE, NAMED = (
    "nats://127.0.0.1:4333",
    "http://127.0.0.1:8001",
    {"WEIR_NATS_URL": "nats://named:4222"},
)


def written(folder: Path, text: str) -> Path:
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_text(text)
    return folder


@pytest.fixture
def beside_up(tmp_path: Path) -> Path:
    return written(tmp_path, json.dumps({"nats_url": UP, "kube_url": KUBE}))


def test_a_given_url_comes_first_and_kubernetes_uses_the_kubeconfig(
    beside_up: Path,
) -> None:
    found = find_connection("nats://given:4222", NAMED, beside_up)

    assert (found.nats_url, found.kube_url) == ("nats://given:4222", "")


def test_the_environment_comes_second(beside_up: Path) -> None:
    assert find_connection(None, NAMED, beside_up).nats_url == NAMED["WEIR_NATS_URL"]


def test_a_running_weir_up_in_this_folder_comes_third_with_its_kubernetes(beside_up: Path) -> None:
    found = find_connection(None, {}, beside_up)

    assert (found.nats_url, found.kube_url) == (UP, KUBE)


def test_a_running_weir_up_is_found_from_folders_below(beside_up: Path) -> None:
    below = beside_up / "data" / "mine"
    below.mkdir(parents=True)

    found, given = find_connection(None, {}, below), find_connection(UP, {}, below)

    assert (found.nats_url, found.kube_url, given.source) == (UP, KUBE, "--nats")
    assert found.public_address == f"{UP} ({beside_up / FILE})"


def test_the_nearest_weir_up_counts(beside_up: Path) -> None:
    (beside_up / "other").mkdir()
    nearer = written(beside_up / "other", json.dumps({"nats_url": "nats://127.0.0.1:4444"}))
    (nearer / "below").mkdir()

    assert (
        find_connection(None, {}, nearer / "below").nats_url
        == find_connection(None, {}, nearer).nats_url
        == "nats://127.0.0.1:4444"
    )


def test_a_file_of_another_user_is_ignored(
    beside_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (beside_up / "below").mkdir()
    owner = (beside_up / FILE).stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)

    assert (
        find_connection(None, {}, beside_up / "below").nats_url == USUAL
        and find_connection(None, {}, beside_up).nats_url == UP
    )


def test_the_default_is_the_usual_address(tmp_path: Path) -> None:
    assert find_connection(None, {}, tmp_path).nats_url == USUAL


def test_a_broken_connection_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=r"cannot read .*connection\.json") as told:
        find_connection(None, {}, written(tmp_path, "{"))
    assert told.value.code == 2


def test_a_password_in_the_address_is_not_shown() -> None:
    assert (
        Connection(nats_url="nats://me:secret@host:4222").public_address
        == "nats://host:4222 (the usual address)"
    )


async def test_an_unreachable_nats_is_an_immediate_error_with_its_address(
    prompt: Prompt,
) -> None:
    said = await prompt("jobs", "--nats", "nats://127.0.0.1:1")

    assert said.code == 1
    assert said.err.startswith("weir jobs: cannot reach NATS at nats://127.0.0.1:1 (--nats): ")
    assert "Traceback" not in said.err


async def test_an_invalid_address_is_an_error(prompt: Prompt) -> None:
    said = await prompt("jobs", "--nats", "nats://host:port")

    assert said.code == 1 and "cannot reach NATS" in said.err


async def test_missing_streams_are_an_error_until_they_are_created(
    prompt: Prompt, nats_server: NatsServer
) -> None:
    before = await prompt("streams", "verify", "--nats", nats_server.url)
    made = await prompt("streams", "create", "--nats", nats_server.url)
    after = await prompt("streams", "verify", "--nats", nats_server.url)

    assert (before.code, made.code, after.code) == (1, 0, 0)
    assert before.err.endswith("create them with `weir streams create`\n")
    assert "weir-orders" in after.out and "weir-programs" in after.out


@pytest.mark.parametrize("code", [10008, None])
def test_an_election_is_not_reported_as_missing_jetstream(code: int | None) -> None:
    told = _explain_failure(ServiceUnavailableError(code=503, err_code=code), Connection())

    assert "electing a leader" in told and "start it with -js" not in told


@pytest.mark.parametrize("code", [10039, 10076])
def test_a_server_without_jetstream_has_a_remedy(code: int) -> None:
    assert "start it with -js" in _explain_failure(
        ServiceUnavailableError(code=503, err_code=code), Connection()
    )
