"""Tests of the command `weir`: its commands, help, exit codes, and closed pipes."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import services.cli
from services.__main__ import COMMANDS, WEIR, overview_text, weir
from services.cli.command_line import BY_WORD, MEANT, Arguments, exit_code
from services.console.trouble import (
    CODES,
    DONE,
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    WRONG_USE,
    Trouble,
)
from shared.bus.bus import Bus
from shared.version import VERSION
from tests.architecture.source import ROOT
from tests.cli.conftest import Api, command, parse_words
from tests.cli.test_jobs import shown
from tests.shared.sample_messages import abandoned


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_the_run_function_of_a_module_with_examples(name: str) -> None:
    module = importlib.import_module(f"services.cli.{name.replace('-', '_')}")

    assert module.run is command(name) and module.EXAMPLES


def test_every_command_module_is_a_command() -> None:
    folder = Path(services.cli.__path__[0])
    modules = {
        file.stem.replace("_", "-")
        for file in folder.glob("*.py")
        if "\n@command(EXAMPLES" in file.read_text()
    }

    assert modules == set(COMMANDS)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert weir(["--help"]) == 0

    named = re.findall(r"^  ([a-z-]+)(?:, ([a-z-]+))?  ", capsys.readouterr().out, re.MULTILINE)
    assert [name for pair in named for name in pair if name] == [*COMMANDS]


def test_the_version_is_the_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert weir(["--version"]) == 0
    assert capsys.readouterr().out == f"weir {VERSION}\n"
    assert "version" in package["project"]["dynamic"]
    assert package["tool"]["hatch"]["version"]["path"] == "shared/version.py"


@pytest.mark.parametrize(
    "words",
    [["cancel", "a*"], ["events", "--since", "soon"], ["submit", "--no-such-word"], ["why"]],
)
def test_wrong_use_exits_with_2_and_names_the_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(words) == 2

    said = capsys.readouterr().err
    assert said.startswith(f"usage: weir {words[0]} ")
    assert said.endswith(f"Try `weir {words[0]} --help`.\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("evnts", ["events"]),
        ("sub", ["submit"]),
        ("Jobs", ["jobs"]),
        ("start", ["up", "submit"]),
        ("run", ["up", "submit"]),
        ("status", ["jobs", "top"]),
        ("ps", ["jobs", "top"]),
        ("ls", ["jobs"]),
        ("get pods", ["jobs"]),
        ("delete digits", ["cancel"]),
        ("dashboard", ["page", "top"]),
    ],
)
def test_an_unknown_command_has_suggestions(
    typed: str, meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(typed.split()) == 2

    _, said, *offered = capsys.readouterr().err.splitlines()
    assert said == f"weir: there is no command {typed.split()[0]!r}; did you mean"
    assert [line.split(maxsplit=2) for line in offered] == [
        ["weir", name, COMMANDS[name]] for name in meant
    ]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("trian", "there is no command 'trian'; `weir --help` lists them"),
        ("help", "help is `weir --help`"),
        ("help submit", "help is `weir submit --help`"),
        ("help me", "help is `weir --help`"),
    ],
)
def test_an_unknown_command_without_suggestions_names_the_help(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(typed.split()) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"weir: {said}"


def test_suggestions_are_commands_and_their_keys_are_not() -> None:
    assert {name for names in MEANT.values() for name in names} <= set(COMMANDS)
    assert set(BY_WORD) & set(COMMANDS) == set() and len(BY_WORD) == sum(map(len, MEANT))


@pytest.mark.parametrize("words", [[], ["--verbose"]])
def test_without_a_command_the_overview_is_shown(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(words) == 2
    assert "\n  submit " in capsys.readouterr().err


# ---------------------------------------------------------------- help on a screen


COLUMNS, LINES = 80, 24


def option_names(name: str) -> list[str]:
    """Return the long options of a command, without `--help`."""
    every = (option for each in command(name).params for option in each.opts)
    return [option for option in every if option.startswith("--")]


PAGES = [
    (name, option)
    for name in COMMANDS
    for option in ["--help", *option_names(name)]
    if "--help" in option
]


def shown_by(name: str) -> str:
    if name == "weir":
        return overview_text()
    context = click.Context(command(name), parent=click.Context(WEIR, info_name="weir"))
    context.info_name = name
    return command(name).get_help(context) + "\n"


@pytest.mark.parametrize("words", [("--help",), *PAGES], ids=" ".join)
def test_each_page_of_help_fits_a_screen(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(words) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines and max(map(len, lines)) <= COLUMNS, max(lines, key=len)
    assert len(lines) <= LINES, "\n".join(lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_name_is_broken_at_its_hyphen(name: str) -> None:
    assert re.findall(r"\w-$", shown_by(name), re.MULTILINE) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_on_exactly_one_help_page(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (option for whose, option in PAGES if whose == name):
        assert weir([name, option]) == 0
    told = re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)

    assert sorted(told) == sorted(option_names(name))


def test_rare_options_are_on_a_second_help_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "\n  --help-tfjob " in shown_by("submit") and "--max-workers N" not in shown_by("submit")
    assert weir(["submit", "--help-tfjob"]) == 0
    assert "--max-workers N  how far workers may grow" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_can_be_typed(name: str) -> None:
    """The command's parser accepts each example, split into words as by a shell."""
    examples = command(name).examples
    assert examples and all(f"  {example}\n" in shown_by(name) for example in examples)

    for example in examples:
        assert parse_words(name, *typed(example, name)).command is command(name)


def typed(example: str, name: str) -> list[str]:
    """Return the words after `weir <name>`, without redirections and pipes."""
    told = re.search(rf"weir {name}((?: [^|<>;)]+)?)", example)
    assert told, example
    return shlex.split(told[1])


def test_every_option_has_a_help_text() -> None:
    silent = [
        (name, each.name)
        for name in COMMANDS
        for each in command(name).params
        if not getattr(each, "help", "")
    ]

    assert silent == []


# ---------------------------------------------------------------- exit codes


def test_exit_codes_are_defined_once_and_shown() -> None:
    assert all(f"{code} {said}" in overview_text() for code, said in CODES.items()), (
        "no line ends within one"
    )
    assert list(CODES) == [DONE, FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED] == [0, 1, 2, 130, 141]


class Ends:
    """A command that raises an exception or returns an exit code."""

    def __init__(self, how: BaseException | int) -> None:
        self.how = how

    def run(self, args: Arguments) -> int:
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
def test_a_command_exits_with_a_code_of_the_table(how: BaseException | int, code: int) -> None:
    assert exit_code(Ends(how).run, "x", Arguments()) == code and code in CODES


def test_errors_have_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services", "jobs", "--nats", "nats://127.0.0.1:1"],
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.splitlines()[-1].endswith(
        "elsewhere, give --nats URL or set WEIR_NATS_URL."
    )
    assert "Traceback" not in ended.stderr


async def piped(*words: object) -> tuple[int, str]:
    """Run the program with its output pipe closed; return its exit code and its standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    command = (sys.executable, "-m", "services", *map(str, words))
    ended = await asyncio.create_subprocess_exec(
        *command, stdout=writer, stderr=asyncio.subprocess.PIPE
    )
    os.close(writer)
    async with asyncio.timeout(120):
        _, said = await ended.communicate()
    return ended.returncode or 0, said.decode()


@pytest.mark.parametrize(
    "words",
    [
        "events --json",
        "events",
        "events --follow",
        "jobs",
        "jobs --json",
        "jobs --watch",
        "streams verify",
    ],
)
async def test_a_closed_pipe_ends_a_command_silently(bus: Bus, nats_url: str, words: str) -> None:
    await bus.publish(abandoned())
    await shown(bus, "digits")

    assert await piped(*words.split(), "--nats", nats_url) == (141, "")


async def test_a_closed_pipe_ends_logs_silently(kube: Api) -> None:
    assert await piped("logs", "digits", "--kube", kube.url) == (141, "")
