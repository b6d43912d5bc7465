"""Tests of `patiently`, the progress wrapper of long commands in the Makefile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"
LIMIT_S = 60.0


@contextmanager
def runs(folder: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a recipe with the progress wrapper, which prints a line every second."""
    rules = folder / "rules.mk"
    rules.write_text(f"include {MAKEFILE}\nlong:\n\t@$(call patiently,{command},{folder},3 GB)\n")
    words = ["make", "--no-print-directory", "-f", str(rules), "TELL_S=1", "long"]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, start_new_session=True, **how) as running:
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("code", [0, 7])
def test_the_progress_wrapper_prints_the_elapsed_time_and_returns_the_exit_code(
    tmp_path: Path, code: int
) -> None:
    """The command ends only after two progress lines were read."""
    go = tmp_path / "go"
    with runs(tmp_path, f"until [ -e {go} ]; do sleep 0.1; done; (exit {code})") as running:
        assert running.stdout
        lines = [running.stdout.readline().rstrip() for _ in range(2)]
        go.touch()
        rest, _ = running.communicate(timeout=LIMIT_S)

    assert [line.partition(" s so far: ")[0] for line in lines] == ["1", "2"]
    assert all(line.endswith(f" of about 3 GB in {tmp_path}") for line in lines)
    assert (running.returncode == 0) == (code == 0) and (f"Error {code}" in rest) == (code != 0)


def test_the_progress_wrapper_prints_nothing_for_a_quick_command(tmp_path: Path) -> None:
    """After the command no process keeps the output pipe open, so a reader gets the end of file."""
    with runs(tmp_path, "echo done") as running:
        told, _ = running.communicate(timeout=LIMIT_S)

    assert told == "done\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopping_the_command_stops_the_progress_wrapper(tmp_path: Path, number: int) -> None:
    """The signal goes to the whole process group, as from a terminal.

    The command prints a line first, so it runs when the signal arrives.
    """
    with runs(tmp_path, "sh -c 'echo begins; exec sleep 600'") as running:
        assert running.stdout and running.stdout.readline() == "begins\n"
        os.killpg(running.pid, number)
        told, _ = running.communicate(
            timeout=LIMIT_S
        )  # returns at end of file: no process keeps the pipe open

    assert running.returncode != 0 and told.count("so far") < LIMIT_S
