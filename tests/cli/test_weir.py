"""The command itself: what it knows, and how it ends."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import services.cli
from services.__main__ import COMMANDS, command, weir


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_with_the_same_two_functions(name: str) -> None:
    module = command(name)

    module.arguments(argparse.ArgumentParser())
    assert callable(module.run)


def test_every_command_module_is_a_command() -> None:
    folder = Path(services.cli.__path__[0])
    modules = {file.stem for file in folder.glob("*.py") if "\ndef run(args: " in file.read_text()}

    assert modules == set(COMMANDS)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        weir(["--help"])

    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert [name for name in COMMANDS if name not in told] == []


@pytest.mark.parametrize("words", [[], ["trian"], ["submit"], ["cancel", "a*"], ["events", "--since", "soon"]])
def test_wrong_use_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        weir(words)

    assert ended.value.code == 2 and "usage: weir" in capsys.readouterr().err


def test_as_a_program_it_says_what_is_wrong_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services", "jobs", "--nats", "nats://127.0.0.1:1"], capture_output=True, text=True
    )

    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.splitlines()[-1] == "Is it running (`weir up`)?"
    assert "Traceback" not in ended.stderr
