"""Which NATS, and what is said when it is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli.connection import FILE, USUAL, Connection, find
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


def test_what_was_given_comes_first_and_leaves_kubernetes_to_the_kubeconfig(
    beside_up: Path,
) -> None:
    found = find("nats://given:4222", NAMED, beside_up)

    assert (found.nats_url, found.kube_url) == ("nats://given:4222", "")


def test_the_environment_comes_second(beside_up: Path) -> None:
    assert find(None, NAMED, beside_up).nats_url == NAMED["WEIR_NATS_URL"]


def test_a_running_weir_up_in_this_folder_comes_third_with_its_kubernetes(beside_up: Path) -> None:
    found = find(None, {}, beside_up)

    assert (found.nats_url, found.kube_url) == (UP, KUBE)


def test_it_is_found_from_every_folder_below_too_and_says_where(beside_up: Path) -> None:
    below = beside_up / "data" / "mine"
    below.mkdir(parents=True)

    found, given = find(None, {}, below), find(UP, {}, below)

    assert (found.nats_url, found.kube_url, given.source) == (UP, KUBE, "--nats")
    assert found.public_address == f"{UP} ({beside_up / FILE})"


def test_the_nearest_counts(beside_up: Path) -> None:
    (beside_up / "other").mkdir()
    nearer = written(beside_up / "other", json.dumps({"nats_url": "nats://127.0.0.1:4444"}))
    (nearer / "below").mkdir()

    assert (
        find(None, {}, nearer / "below").nats_url
        == find(None, {}, nearer).nats_url
        == "nats://127.0.0.1:4444"
    )


def test_above_us_a_file_of_somebody_else_is_not_believed(
    beside_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (beside_up / "below").mkdir()
    owner = (beside_up / FILE).stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)

    assert (
        find(None, {}, beside_up / "below").nats_url == USUAL
        and find(None, {}, beside_up).nats_url == UP
    )


def test_otherwise_it_is_the_usual_address(tmp_path: Path) -> None:
    assert find(None, {}, tmp_path).nats_url == USUAL


def test_a_broken_file_is_told_and_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match=r"cannot read .*connection\.json") as told:
        find(None, {}, written(tmp_path, "{"))
    assert told.value.code == 2


def test_a_password_in_the_address_is_not_shown() -> None:
    assert (
        Connection(nats_url="nats://me:secret@host:4222").public_address
        == "nats://host:4222 (the usual address)"
    )


async def test_a_nats_that_is_not_there_is_told_at_once_with_where_it_was_looked_for(
    prompt: Prompt,
) -> None:
    said = await prompt("jobs", "--nats", "nats://127.0.0.1:1")

    assert said.code == 1
    assert said.err.startswith("weir jobs: cannot reach NATS at nats://127.0.0.1:1 (--nats): ")
    assert "Traceback" not in said.err


async def test_an_address_that_is_none_is_told(prompt: Prompt) -> None:
    said = await prompt("jobs", "--nats", "nats://host:port")

    assert said.code == 1 and "cannot reach NATS" in said.err


async def test_streams_are_missing_until_they_are_made(
    prompt: Prompt, nats_server: NatsServer
) -> None:
    before = await prompt("streams", "verify", "--nats", nats_server.url)
    made = await prompt("streams", "create", "--nats", nats_server.url)
    after = await prompt("streams", "verify", "--nats", nats_server.url)

    assert (before.code, made.code, after.code) == (1, 0, 0)
    assert before.err.endswith("create them with `weir streams create`\n")
    assert "weir-orders" in after.out and "weir-programs" in after.out
