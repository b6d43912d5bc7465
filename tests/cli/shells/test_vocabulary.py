"""What may be typed, read off the commands' own parsers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.__main__ import COMMANDS, parsers
from services.allocator.policies.registry import POLICIES
from services.cli.parsing import Parser
from services.cli.shells.vocabulary import Command, Option, vocabulary


def test_a_parser_becomes_its_words() -> None:
    made = Parser("weir try", "try it")
    made.add_argument("what", choices=("one", "two"), nargs="?")
    made.add_argument("file", type=Path)
    made.add_argument("-f", "--follow", action="store_true", help="go on")
    made.add_argument("--count", type=int, choices=(1, 3), help="how many; 50 %%")
    made.add_argument("--out", type=Path)

    (read,) = vocabulary({"try": made})

    assert (read.name, read.said, read.words, read.file) == ("try", "try it", ("one", "two"), True)
    assert read.options[1:] == (
        Option(("-f", "--follow"), "go on", False, (), False),
        Option(("--count",), "how many; 50 %", True, ("1", "3"), False),
        Option(("--out",), "", True, (), True),
    )


def test_every_command_of_weir_is_in_it() -> None:
    read = {command.name: command for command in vocabulary(parsers())}

    assert list(read) == list(COMMANDS)
    assert all(isinstance(command, Command) and command.options for command in read.values())
    assert read["streams"].words == ("create", "verify") and read["submit"].file


@pytest.mark.parametrize("name", COMMANDS)
def test_each_word_is_one_that_a_shell_takes_as_it_is(name: str) -> None:
    """So that a script needs no quoting of words: descriptions alone are quoted."""
    (read,) = vocabulary({name: parsers()[name]})

    words = [name, *read.words, *(n for o in read.options for n in (*o.names, *o.values))]
    assert all(re.fullmatch("[A-Za-z0-9_.-]+", word) for word in words), words


def test_what_only_the_bus_knows_is_asked_for_where_it_may_stand() -> None:
    read = {command.name: command for command in vocabulary(parsers())}

    about_a_job = {"cancel", "change", "explain", "forget", "logs", "report", "resume", "suspend"}
    assert {name for name, command in read.items() if command.asks == "jobs"} == about_a_job
    asked = {name: option for option in read["events"].options for name in option.names}
    assert (asked["--job"].asks, asked["--namespace"].asks, asked["--kind"].asks) == (
        "jobs",
        "namespaces",
        "",
    )
    assert {"job", "job.accepted", "capacity.changed"} <= {*asked["--kind"].values}
    (policies,) = (
        option.values for option in read["simulate"].options if "--policies" in option.names
    )
    assert policies == tuple(sorted(POLICIES))
