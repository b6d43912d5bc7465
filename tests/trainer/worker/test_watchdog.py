"""Tests of the watchdog: a call that does not return is reported with its time and place.

A call that returns in time is not reported.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from services.trainer import program
from services.trainer.protocol import Failed, crash_failure, decode_event
from services.trainer.worker.watchdog import Watchdog, thread_stack

ROOT = Path(__file__).parents[3]
SLOW = """
def wait(gate):
    gate.wait()

def helped(gate):
    import threading
    thread = threading.Thread(target=wait, args=(gate,))
    thread.start()
    return thread.join
"""


class Stuck:
    """A program with one function that runs in its own thread until the test ends."""

    def __init__(self, folder: Path, dog: Watchdog | None = None) -> None:
        self.path = folder / "slow.py"
        self.path.write_text(SLOW + "\n".join(f"def {name}(*_): ..." for name in program.REQUIRED))
        self.program: ModuleType = program.load(
            self.path, program.program_digest(self.path.read_bytes())
        )
        self.dog = dog or Watchdog(str(self.path), early_s=10.0, later_s=100.0)
        self.gate, self.inside = threading.Event(), threading.Event()
        self.thread = 0

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        def call() -> None:
            self.thread = threading.get_ident()
            with self.dog.limit(what):
                self.inside.set()
                self.program.wait(self.gate)

        thread = threading.Thread(target=call)
        thread.start()
        self.inside.wait()
        try:
            yield
        finally:  # otherwise the thread would keep the process of a failed test
            self.gate.set()
            thread.join()


def looks(dog: Watchdog, seconds: float, gap_s: float = 0.5) -> Failed | None:
    """Make the checks of the watchdog's thread at once. Return the first failure, or None."""
    found = (dog.check_all(gap_s) for _ in range(round(seconds / gap_s)))
    return next((failed for failed in found if failed), None)


def test_a_stuck_thread_is_reported_with_its_time_and_the_programs_stack(
    tmp_path: Path,
) -> None:
    stuck = Stuck(tmp_path)
    with stuck.calling("dataset(0, 16)"):
        assert looks(stuck.dog, 9.0) is None
        failed = looks(stuck.dog, 2.0)

    assert failed is not None and not failed.peer
    head, first, code, *_ = failed.cause.splitlines()
    assert head.startswith("slow.py is stuck: dataset(0, 16) has not returned for 10 s.")
    assert (
        first.strip() == f'File "{stuck.path}", line 3, in wait' and code.strip() == "gate.wait()"
    )


def test_a_thread_that_returns_in_time_is_not_reported(tmp_path: Path) -> None:
    stuck = Stuck(tmp_path)
    with stuck.calling("dataset(0, 16)"):
        assert looks(stuck.dog, 9.0) is None

    assert looks(stuck.dog, 100.0) is None


def test_each_evaluation_batch_has_the_time_limit(tmp_path: Path) -> None:
    dog = Watchdog("net.py", early_s=10.0, later_s=100.0)
    with dog.limit("evaluation()") as inside:
        for _ in range(5):
            assert looks(dog, 9.0) is None
            inside.renew()
        assert looks(dog, 11.0) is not None


def test_the_limit_is_longer_once_training_has_begun(tmp_path: Path) -> None:
    dog = Watchdog("net.py", early_s=10.0, later_s=100.0)
    with dog.limit("dataset(0, 16)"):
        dog.use_later_limit()
        assert looks(dog, 99.0) is None
        assert "for 100 s" in getattr(looks(dog, 2.0), "cause", "")


def test_a_frozen_process_is_not_reported_as_stuck() -> None:
    dog = Watchdog("net.py", early_s=10.0, later_s=100.0)
    with dog.limit("model()"):
        assert dog.check_all(3600.0) is None
        assert looks(dog, 8.0) is None
        assert looks(dog, 2.0) is not None


def test_an_unreachable_task_is_blamed_before_the_program() -> None:
    dog = Watchdog("net.py", early_s=10.0, later_s=100.0)
    dog.missing_tasks = lambda: ["worker-1 at h:1"]
    with dog.limit("model()"):
        failed = looks(dog, 11.0)

    assert (
        failed is not None
        and failed.peer
        and failed.cause.endswith("Not reachable: worker-1 at h:1")
    )


def test_program_code_in_another_thread_is_found(tmp_path: Path) -> None:
    """For example, TensorFlow reads from a generator in another thread."""
    stuck = Stuck(tmp_path)
    join = stuck.program.helped(stuck.gate)

    stack = thread_stack(threading.get_ident(), str(stuck.path))

    stuck.gate.set()
    join()
    assert 'slow.py", line 3, in wait' in stack and "test_watchdog" not in stack


def test_a_thread_without_program_code_shows_its_own_stack(tmp_path: Path) -> None:
    assert "in test_a_thread_without_program_code" in thread_stack(
        threading.get_ident(), str(tmp_path / "net.py")
    )


# ------------------------------------------------------------ crashes: no Python code can run

HARSH = """
import os, re, socket, sys
from services.trainer.worker.watchdog import Watchdog
import faulthandler

channel = socket.socket(fileno=int(sys.argv[1]))
faulthandler.enable(channel.fileno(), all_threads=False)
Watchdog("nobody.py", 0.5, 0.5).start(channel.fileno(), lambda failed: os._exit(99))

def dataset(how):
    if how == "lock":
        re.match(r"(a+)+$", "a" * 64 + "b")
    faulthandler._sigsegv()

dataset(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("how", "what"),
    [("lock", r"Timeout \(0:00:00\.5375"), ("crash", "Fatal Python error: Segmentation fault")],
)
def test_a_crash_is_reported_by_faulthandler(tmp_path: Path, how: str, what: str) -> None:
    path = tmp_path / "hársh.py"
    path.write_text(HARSH)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, str(path), str(theirs.fileno()), how]
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        ended = subprocess.run(
            command, pass_fds=[theirs.fileno()], env=env, timeout=120, check=False
        )
        theirs.close()
        said = ours.makefile("rb").read()

    assert ended.returncode not in (0, 99)
    assert [decode_event(text) for text in said.splitlines()] == [None] * len(said.splitlines())
    failed = crash_failure(said.decode(), str(path))
    assert (
        not failed.peer
        and re.search(what, failed.cause)
        and re.search(r"line \d+ in dataset", failed.cause)
    )


FROZEN = """
import os, signal, sys
from services.trainer.worker.watchdog import Watchdog

dog = Watchdog("nobody.py", 1.0, 60.0)
dog.start(sys.stderr.fileno(), lambda failed: os._exit(99))
dog.use_later_limit()
os.kill(os.getpid(), signal.SIGSTOP)
"""
EARLY_LIMIT_S = 1.1


def test_a_process_that_is_frozen_when_training_begins_continues() -> None:
    """`faulthandler` counts real time, so it must know the later limit at once."""
    with subprocess.Popen([sys.executable, "-c", FROZEN], cwd=ROOT) as frozen:
        os.waitpid(frozen.pid, os.WUNTRACED)
        time.sleep(EARLY_LIMIT_S)  # real time is what is tested
        frozen.send_signal(signal.SIGCONT)

        assert frozen.wait(60.0) == 0


def test_last_output_without_program_frames_blames_nobody() -> None:
    text = 'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "/x/chief.py"'

    failed = crash_failure(text, "/y/net.py")

    assert failed.peer and "Aborted" in failed.cause and "chief.py" in failed.cause


def test_only_stacks_with_program_frames_are_reported() -> None:
    other = 'Thread 0x1 (most recent call first):\n  File "/lib/threading.py", line 2 in wait'
    mine = 'Thread 0x2 (most recent call first):\n  File "/y/net.py", line 5 in dataset'

    failed = crash_failure(f"Timeout (0:01:40)!\n{other}\n\n{mine}\n", "/y/net.py")

    assert not failed.peer and failed.cause.endswith(mine) and "threading" not in failed.cause
