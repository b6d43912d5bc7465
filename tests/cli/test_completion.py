"""Tests of `weir completion`: each shell completes with its script, if the shell is installed.

Most tests use click's own completion classes in this process, without a shell.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from services.__main__ import COMMANDS, WEIR
from services.allocator.policies.registry import POLICIES
from services.cli import completion
from services.cli.command_line import JOB_NAME, NAMESPACE, Value
from services.cli.completion import SHELLS, completion_script
from shared.bus.bus import Bus
from tests.architecture.source import ROOT
from tests.cli.conftest import Prompt, command
from tests.cli.test_jobs import shown

NOWHERE = {"WEIR_NATS_URL": "nats://127.0.0.1:1"}


def complete_words(*typed: str) -> list[str]:
    """Return the words that complete the last one, without paths."""
    *before, incomplete = typed
    items = ShellComplete(WEIR, {}, "weir", "_WEIR_COMPLETE").get_completions(before, incomplete)
    return [item.value for item in items if item.type == "plain"]


CASES = [
    (("ex",), ["explain"]),
    (("streams", ""), ["create", "verify"]),
    (("streams", "--repl"), ["--replicas"]),
    (("streams", "create", "--replicas", ""), ["1", "3", "5"]),
    (("decide", "--policy", "con"), ["config-manager"]),
    (("completion", "z"), ["zsh"]),
    (("submit", "--tfjob", ""), []),
    (("simulate", "--policies", "fl"), ["flowcon"]),
    (("events", "--kind", "training.res"), ["training.resumed"]),
]


@pytest.mark.parametrize(("typed", "fitting"), CASES)
def test_matching_words_are_completed(typed: tuple[str, ...], fitting: list[str]) -> None:
    assert complete_words(*typed) == fitting


def test_every_command_and_option_is_completed() -> None:
    assert complete_words("") == list(COMMANDS) and {"--help", "--version"} <= {
        *complete_words("-")
    }
    for name in COMMANDS:
        options = {option for each in command(name).params for option in each.opts if "-" in option}
        assert options <= {*complete_words(name, "-")} | {o for o in options if o[0] != "-"}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_completed_word_needs_quoting(name: str) -> None:
    """The completion scripts do not quote words."""
    words = [name]
    for each in command(name).params:
        if isinstance(each.type, click.Choice):
            words += map(str, each.type.choices)
        if isinstance(each.type, Value):
            words += each.type.offers
        words += each.opts
    assert all(re.fullmatch("[A-Za-z0-9_.-]+", word) for word in words), words


def test_a_path_is_completed_by_the_shell() -> None:
    complete = ShellComplete(WEIR, {}, "weir", "_WEIR_COMPLETE")
    for typed in (["submit"], ["submit", "--tfjob"], ["recover"], ["simulate", "--json"]):
        assert [item.type for item in complete.get_completions(typed, "")] == ["file"], typed


def test_job_names_are_completed_where_they_are_arguments() -> None:
    types = {(name, p.name): p.type for name in COMMANDS for p in command(name).params}

    about_a_job = {name for (name, _), each in types.items() if each is JOB_NAME}
    named = {"cancel", "change", "explain", "forget", "logs", "report", "resume", "suspend"}
    assert about_a_job == named | {"events"}
    assert types["events", "job"] is JOB_NAME
    assert all(each is NAMESPACE for (_, name), each in types.items() if name == "namespace")
    kinds, policies = types["events", "kind"], types["simulate", "policies"]
    assert isinstance(kinds, Value) and isinstance(policies, Value)
    assert {"job", "job.accepted", "capacity.changed"} <= {*kinds.offers}
    assert policies.offers == tuple(sorted(POLICIES))


@pytest.mark.parametrize(
    ("typed", "fitting"),
    [
        (("cancel", "di"), ["digits"]),
        (("explain", "-n", "red", "di"), ["diabetes"]),
        (("events", "--follow", "--job", "di"), ["diabetes", "digits"]),
        (("jobs", "-n", "de"), ["default"]),
    ],
)
async def test_completed_names_are_of_the_commands_bus_and_namespace(
    bus: Bus,
    nats_url: str,
    monkeypatch: pytest.MonkeyPatch,
    typed: tuple[str, ...],
    fitting: list[str],
) -> None:
    monkeypatch.setattr(completion, "ANSWER_S", 60.0)
    monkeypatch.setenv("WEIR_NATS_URL", nats_url)
    for job, where in (("digits", "default"), ("clicks", "default"), ("diabetes", "red")):
        await shown(bus, job, where)

    assert await asyncio.to_thread(complete_words, *typed) == fitting


async def test_cancel_completes_only_unfinished_jobs(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "ANSWER_S", 60.0)
    monkeypatch.setenv("WEIR_NATS_URL", nats_url)
    await shown(bus, "digits", phase="Running")
    await shown(bus, "ended", phase="Succeeded")

    assert await asyncio.to_thread(complete_words, "cancel", "") == ["digits"]
    assert await asyncio.to_thread(complete_words, "logs", "") == ["digits", "ended"]


# ---------------------------------------------------------------- real shells


def script_file(shell: str, folder: Path) -> Path:
    """Write the completion script; return its file. Skip the test if the shell is not installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    file = folder / f"weir.{shell}"
    file.write_text(completion_script(shell, WEIR))
    return file


def run(folder: Path, *words: str, environment: Mapping[str, str] = NOWHERE) -> str:
    """Run a shell that finds `weir` in `folder`; return its output."""
    program = folder / "weir"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m services "$@"\n')
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    ended = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment, "PATH": path, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    return ended.stdout


def bash(folder: Path, *typed: str) -> list[str]:
    """Return the words with which bash completes the last one."""
    quoted = " ".join(f"'{word}'" for word in ("weir", *typed))
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(typed)}; _weir_completion weir"
    lines = [
        "compopt() { :; }",  # works only inside a completion
        f"source {script_file('bash', folder)}",
        ask,
        "printf '%s\\n' \"${COMPREPLY[@]}\"",
    ]
    return run(folder, "bash", "--norc", "-c", "\n".join(lines)).split()


@pytest.mark.parametrize(("typed", "fitting"), CASES)
def test_bash_completes_matching_words(
    typed: tuple[str, ...], fitting: list[str], tmp_path: Path
) -> None:
    assert bash(tmp_path, *typed) == fitting


def test_bash_completes_nothing_silently_without_a_bus(tmp_path: Path) -> None:
    assert bash(tmp_path, "cancel", "di") == []


def test_fish_completes_matching_words(tmp_path: Path) -> None:
    file = script_file("fish", tmp_path)

    def offered_by_fish(typed: str) -> list[str]:
        told = run(tmp_path, "fish", "--no-config", "-c", f"source {file}; complete -C '{typed}'")
        return [line.split("\t")[0] for line in told.splitlines()]

    assert sorted(offered_by_fish("weir ")) == sorted(COMMANDS)
    assert offered_by_fish("weir streams ") == ["create", "verify"]
    assert offered_by_fish("weir streams create --replicas ") == ["1", "3", "5"]
    assert "--follow" in offered_by_fish("weir events --f")


def test_zsh_loads_its_completion_script(tmp_path: Path) -> None:
    file = script_file("zsh", tmp_path)

    lines = f"autoload -U compinit; compinit -D; source {file}; print ${{_comps[weir]}}"
    told = run(tmp_path, "zsh", "-f", "-c", lines)

    assert told.strip() == "_weir_completion"


@pytest.mark.parametrize("shell", SHELLS)
async def test_completion_writes_the_script(prompt: Prompt, shell: str) -> None:
    said = await prompt("completion", shell)

    assert said.code == 0 and said.out == completion_script(shell, WEIR)
    assert f"_WEIR_COMPLETE={shell}_complete" in said.out


async def test_unexpected_words_are_wrong_use(prompt: Prompt) -> None:
    said = await prompt("completion", "bash", "more")

    assert said.code == 2 and "unexpected words: more" in said.err
