"""Tests of test runs: a killed run leaves no process, and a run in the background passes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.local.kubelet import processes
from tests.architecture.source import ROOT

pytestmark = pytest.mark.long

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
STARTS_S, ENDS_S, BACKGROUND_S = 300.0, 10.0, 300.0
ONE_OF_EACH = (
    "nats-server",
    "services.trainer",
    "services.trainer.worker.fork_server",
    "services.local",
    "services.allocator",
)
ONE_OF_EACH += ("services.local.tenant", "orphan")
NEED_SIGINT = (
    "tests/architecture/test_makefile.py::test_stopping_the_command_stops_the_progress_wrapper",
    "tests/cli/test_top.py::test_top_on_a_terminal_shows_an_outage_and_recovers",
    "tests/cli/test_page.py::test_page_prints_its_address_answers_there_and_ends_on_ctrl_c",
)


@contextmanager
def run_of(words: tuple[str, ...], **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([*PYTEST, *words], cwd=ROOT, env={**os.environ, **environ})
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def until(holds: Callable[[], object], within_s: float) -> bool:
    """Wait until `holds` returns a true value. Return False if it does not in time."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("workers", [("-p", "no:xdist"), ("-n", "1")], ids=["alone", "xdist"])
def test_every_process_of_a_test_run_ends_when_the_run_is_killed(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    """TensorFlow is necessary: the processes found hours after their test were trainers."""
    report = tmp_path / "report"
    words = ("tests/flow/killed_scene.py", *workers, "--basetemp", str(tmp_path / "inner"))
    with run_of(words, SCENE_REPORT=str(report)) as running:
        assert (
            until(lambda: report.exists() or running.poll() is not None, STARTS_S)
            and running.poll() is None
        )
        started = {int(pid): command for pid, command in json.loads(report.read_text()).items()}
        started |= {process.pid: ["pytest"] for process in psutil.Process(running.pid).children()}
        running.kill()

    words_of_all = " ".join(word for command in started.values() for word in command)
    assert [part for part in ONE_OF_EACH if part not in words_of_all] == []
    assert until(lambda: not left(started), ENDS_S), left(started)


def left(started: dict[int, list[str]]) -> dict[int, list[str]]:
    return {pid: command for pid, command in started.items() if processes.is_running(pid)}


def test_tests_that_send_sigint_pass_where_the_shell_ignores_it(tmp_path: Path) -> None:
    """As in `make test &`: a shell without job control makes background processes ignore SIGINT."""
    ended = subprocess.run(
        [*PYTEST, *NEED_SIGINT, "--basetemp", str(tmp_path / "inner")],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        timeout=BACKGROUND_S,
        check=False,
    )

    assert ended.returncode == 0
