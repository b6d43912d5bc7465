"""Tests of completed names: those that the bus returns quickly, and none without an answer."""

from __future__ import annotations

import socket
import time

import msgspec
import pytest

from services.__main__ import WEIR
from services.allocator.job_views import JobView
from services.cli import completion, connection
from services.cli.completion import typed_namespace
from shared.bus.bus import Bus
from shared.bus.subjects import JOBS
from tests.cli.conftest import Prompt
from tests.cli.test_jobs import shown


@pytest.fixture
def patient(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "ANSWER_S", 60.0)
    monkeypatch.setenv("WEIR_NATS_URL", nats_url)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (("jobs", "cancel", "d"), ["clicks", "digits"]),
        (("jobs", "cancel", "--namespace", "red", ""), ["diabetes"]),
        (("jobs", "events", "--follow", "--job", ""), ["clicks", "diabetes", "digits"]),
        (("namespaces", "jobs", "-n", ""), ["default", "red"]),
    ],
)
async def test_completed_names_are_those_of_the_commands_namespace(
    bus: Bus, prompt: Prompt, typed: tuple[str, ...], names: list[str]
) -> None:
    for job, where in (("digits", "default"), ("clicks", "default"), ("diabetes", "red")):
        await shown(bus, job, where)

    said = await prompt("completion", "bash", "--names", *typed)

    assert (said.code, said.out.split(), said.err) == (0, names, "")


@pytest.mark.usefixtures("patient")
async def test_a_finished_job_is_completed_for_other_commands_than_cancel(
    bus: Bus, prompt: Prompt
) -> None:
    for job, phase in (
        ("digits", "Running"),
        ("waits", "Pending"),
        ("ended", "Succeeded"),
        ("gone", "Cancelled"),
    ):
        await shown(bus, job, phase=phase)

    assert (await prompt("completion", "bash", "--names", "jobs", "cancel", "")).out.split() == [
        "digits",
        "waits",
    ]
    every = (await prompt("completion", "bash", "--names", "jobs", "logs", "")).out.split()
    assert every == ["digits", "ended", "gone", "waits"]


@pytest.mark.usefixtures("patient")
async def test_invalid_names_are_not_completed(bus: Bus, prompt: Prompt) -> None:
    odd = JobView(job="$(touch here)", namespace="default", uid=7, phase="Running")
    await (await bus.bucket(JOBS)).put("default.odd", msgspec.json.encode(odd))

    assert (await prompt("completion", "zsh", "--names", "jobs", "logs", "")).out.split() == []


async def test_without_a_bus_completion_prints_nothing(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_NATS_URL", "nats://127.0.0.1:1")

    assert await prompt("completion", "fish", "--names", "jobs", "logs", "") == (0, "", "")


async def test_completion_does_not_wait_for_a_silent_bus(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts connections and never answers.

    Completion has a shorter timeout of its own.
    """
    monkeypatch.setattr(completion, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("WEIR_NATS_URL", f"nats://127.0.0.1:{deaf.getsockname()[1]}")
        began_s = time.monotonic()

        assert await prompt("completion", "bash", "--names", "jobs", "logs", "") == (0, "", "")
    assert time.monotonic() - began_s < connection.CONNECT_S - 10


def test_an_unknown_command_completes_names_of_every_namespace() -> None:
    assert (
        typed_namespace(WEIR, "jobs", []) is None
        and typed_namespace(WEIR, "jobs", ["nonsense", ""]) is None
    )
