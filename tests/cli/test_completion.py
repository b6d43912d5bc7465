"""`weir completion`: each shell completes with its script, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from services.__main__ import COMMANDS, parsers
from services.cli.completion import SHELLS
from services.cli.shells.vocabulary import vocabulary
from tests.cli.conftest import Prompt

WORDS = vocabulary(parsers())


def script(shell: str, folder: Path) -> Path:
    """Skips where there is no such shell."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    file = folder / f"weir.{shell}"
    file.write_text(SHELLS[shell](WORDS))
    return file


def bash(folder: Path, *typed: str, before: str = "") -> list[str]:
    """What bash offers behind these words, the last of which is unfinished."""
    quoted = " ".join(f"'{word}'" for word in ("weir", *typed))
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(typed)}; _weir; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return run("bash", "--norc", "-c", f"{before}source {script('bash', folder)}; {ask}").split()


def run(*words: str) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("ex",), ["explain"]),
        (("streams", ""), ["create", "verify"]),
        (("streams", "--repl"), ["--replicas"]),
        (("streams", "create", "--replicas", ""), ["1", "3", "5"]),
        (("decide", "--policy", "con"), ["config-manager"]),
        (("completion", "z"), ["zsh"]),
        (("submit", "--tfjob", ""), []),
        (("simulate", "--policies", "fl"), ["flowcon"]),
        (("events", "--kind", "training.res"), ["training.resumed"]),
    ],
)
def test_bash_offers_what_fits(typed: tuple[str, ...], offered: list[str], tmp_path: Path) -> None:
    assert bash(tmp_path, *typed) == offered


ASKED = 'weir() {{ [ "$*" = "completion bash --names {}" ] && printf "%s\\n" digits diabetes clicks; }}; '
"""Stands for the command, which the script asks for names."""


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        (("cancel", "di"), "jobs"),
        (("explain", "-n", "red", "di"), "jobs"),
        (("events", "--follow", "--job", "di"), "jobs"),
        (("jobs", "-n", "di"), "namespaces"),
    ],
)
def test_bash_asks_for_names_with_all_that_was_typed(
    typed: tuple[str, ...], what: str, tmp_path: Path
) -> None:
    asked = ASKED.format(" ".join([what, *typed]))

    assert bash(tmp_path, *typed, before=asked) == ["digits", "diabetes"]


def test_where_nobody_answers_bash_offers_nothing_and_says_nothing(tmp_path: Path) -> None:
    assert (
        bash(tmp_path, "cancel", "di", before="weir() { echo no such bus >&2; return 1; }; ") == []
    )


def test_bash_offers_every_command_and_every_option(tmp_path: Path) -> None:
    assert bash(tmp_path, "") == [*COMMANDS, "--help"]
    for command in WORDS:
        names = [name for option in command.options for name in option.names]
        assert bash(tmp_path, command.name, "-") == names


def test_fish_offers_what_fits(tmp_path: Path) -> None:
    file = script("fish", tmp_path)
    asked = "function weir; test $argv[3] = --names; and printf '%s\\n' digits diabetes clicks; end"

    def offered(typed: str) -> list[str]:
        told = run("fish", "--no-config", "-c", f"{asked}; source {file}; complete -C '{typed}'")
        return [line.split("\t")[0] for line in told.splitlines()]

    assert offered("weir ") == sorted(COMMANDS)
    assert offered("weir streams ") == ["create", "verify"]
    assert offered("weir streams create --replicas ") == ["1", "3", "5"]
    assert "--follow" in offered("weir events --f")
    assert offered("weir cancel -n red d") == ["diabetes", "digits"]
    assert offered("weir events --job c") == ["clicks"]


def test_zsh_reads_its_script_and_knows_whom_it_completes(tmp_path: Path) -> None:
    file = script("zsh", tmp_path)

    told = run(
        "zsh",
        "-f",
        "-c",
        f"autoload -U compinit; compinit -D; source {file}; print ${{_comps[weir]}}",
    )

    assert told.strip() == "_weir"


@pytest.mark.parametrize("shell", SHELLS)
async def test_it_writes_the_script(prompt: Prompt, shell: str) -> None:
    said = await prompt("completion", shell)

    assert said.code == 0 and said.out == SHELLS[shell](WORDS)
    assert all(name in said.out for name in COMMANDS)
