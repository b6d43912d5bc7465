"""The command itself: what it knows, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import services.cli
from services.__main__ import COMMANDS, command, weir
from shared.bus import Bus
from tests.cli.conftest import Api
from tests.cli.test_jobs import shown
from tests.shared.words import abandoned


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_with_the_same_two_functions(name: str) -> None:
    module = command(name)

    module.arguments(argparse.ArgumentParser())
    assert callable(module.run)


def test_every_command_module_is_a_command() -> None:
    folder = Path(services.cli.__path__[0])
    modules = {file.stem.replace("_", "-") for file in folder.glob("*.py") if "\ndef run(args: " in file.read_text()}

    assert modules == set(COMMANDS)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        weir(["--help"])

    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert [name for name in COMMANDS if name not in told] == []


@pytest.mark.parametrize("words", [[], ["trian"], ["cancel", "a*"], ["events", "--since", "soon"]])
def test_wrong_use_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        weir(words)

    assert ended.value.code == 2 and "usage: weir" in capsys.readouterr().err


def test_as_a_program_it_says_what_is_wrong_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services", "jobs", "--nats", "nats://127.0.0.1:1"], capture_output=True, text=True
    )

    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.splitlines()[-1].endswith("elsewhere give --nats URL or set WEIR_NATS_URL.")
    assert "Traceback" not in ended.stderr


async def piped(*words: object) -> tuple[int, str]:
    """How the program ends when nobody reads what it prints, and what it says on standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    command = (sys.executable, "-m", "services", *map(str, words))
    ended = await asyncio.create_subprocess_exec(*command, stdout=writer, stderr=asyncio.subprocess.PIPE)
    os.close(writer)
    async with asyncio.timeout(30):
        _, said = await ended.communicate()
    return ended.returncode or 0, said.decode()


@pytest.mark.parametrize(
    "words", ["events --json", "events", "events --follow", "jobs", "jobs --json", "jobs --watch", "streams verify"]
)
async def test_when_nobody_reads_on_a_command_ends_without_a_word(bus: Bus, nats_url: str, words: str) -> None:
    await bus.publish(abandoned())
    await shown(bus, "digits")

    assert await piped(*words.split(), "--nats", nats_url) == (141, "")


async def test_when_nobody_reads_on_logs_ends_without_a_word_too(kube: Api) -> None:
    assert await piped("logs", "digits", "--kube", kube.url) == (141, "")
