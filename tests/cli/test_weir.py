"""The command itself: what it knows, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import services.cli
from services.__main__ import COMMANDS, command, overview, parser, weir
from services.__main__ import run as ended
from services.cli.trouble import CODES, DONE, FAILED, INTERRUPTED, PIPE_CLOSED, WRONG_USE, Trouble
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
    assert weir(["--help"]) == 0

    told = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " not in told] == []


@pytest.mark.parametrize(
    "words", [["cancel", "a*"], ["events", "--since", "soon"], ["submit", "--no-such-word"], ["why"]]
)
def test_wrong_use_ends_with_2_and_says_where_help_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        weir(words)

    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"usage: weir {words[0]} ")
    assert said.endswith(f"Try `weir {words[0]} --help`.\n")


@pytest.mark.parametrize(
    ("word", "advice"), [("trian", "`weir --help` lists them"), ("evnts", "did you mean `weir events`?")]
)
def test_a_command_that_is_none_is_answered_with_the_likeliest(
    word: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir([word]) == 2
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--verbose"]])
def test_without_a_command_all_of_them_are_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert weir(words) == 2
    assert "\n  submit " in capsys.readouterr().err


# ---------------------------------------------------------------- a screen


SCREEN, LONGER = 24, {"submit": 45, "simulate": 40}
"""Lines. A screen has 80 columns and 24 lines; two commands have more to name than it holds."""


def shown_by(name: str) -> str:
    return overview() if name == "weir" else parser(name).format_help()


@pytest.mark.parametrize("name", ["weir", *COMMANDS])
def test_help_fits_a_screen(name: str) -> None:
    lines = shown_by(name).splitlines()

    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert len(lines) <= LONGER.get(name, SCREEN), "\n".join(lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_can_be_typed(name: str) -> None:
    """Each is read by the command's own parser, as a shell would hand it over."""
    examples = command(name).EXAMPLES
    assert examples and all(f"  {example}\n" in shown_by(name) for example in examples)

    for example in examples:
        words = typed(example, name)
        parser(name).parse_args(words)


def typed(example: str, name: str) -> list[str]:
    """The words behind `weir <name>`, without what is the shell's."""
    told = re.search(rf"weir {name}((?: [^|<>;)]+)?)", example)
    assert told, example
    return shlex.split(told[1])


def test_every_option_says_what_it_does() -> None:
    silent = [(n, a.dest) for n in COMMANDS for a in parser(n)._actions if not (a.help or a.metavar == a.dest)]

    assert silent == []


# ---------------------------------------------------------------- exit codes


def test_the_exit_codes_are_told_in_one_place_and_shown() -> None:
    shown = " ".join(overview().split())
    assert all(f"{code} {said}" in shown for code, said in CODES.items())
    assert list(CODES) == [DONE, FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED] == [0, 1, 2, 130, 141]


class Ends:
    """A command that ends in some way."""

    def __init__(self, how: BaseException | int) -> None:
        self.how = how

    def run(self, args: argparse.Namespace) -> int:
        if isinstance(self.how, BaseException):
            raise self.how
        return self.how


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (0, DONE),
        (1, FAILED),
        (Trouble("x"), FAILED),
        (Trouble("x", WRONG_USE), WRONG_USE),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_a_command_ends_with_a_code_of_the_table(how: BaseException | int, code: int) -> None:
    assert ended(Ends(how), argparse.Namespace(command="x")) == code and code in CODES


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
    async with asyncio.timeout(120):
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
