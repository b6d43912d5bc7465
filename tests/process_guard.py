"""End every process that a test run starts when the run ends, also after `kill -9`; reset SIGINT.

The run sets a mark in its environment, which all its child processes inherit. A shell at the other
end of a pipe (the same one that `services/local` uses for its pods) waits until the pipe closes.
The kernel closes the pipe when the run ends for any reason. The shell then kills every process that
has the mark. A run inside a run (a worker of pytest-xdist, a test that starts pytest) extends the
mark, so the outer run also ends the inner one.

Code that starts a process with a new environment adds `run_mark()`. Two kinds of processes have no
mark: pods of `services/local`, which their own shell ends, and Chromium, which exits when its pipe
to the run closes.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from types import FrameType

from services.local.kubelet.processes import SCRIPT

MARK = "TEST_RUN"
"""The name does not begin with `WEIR_`, because services refuse unknown settings."""


def start_guard() -> subprocess.Popen[bytes]:
    """Set the mark of this run, and start the shell that ends the processes with this mark."""
    os.environ[MARK] = f"{os.environ.get(MARK, '')}{secrets.token_hex(8)}/"
    quiet, bare = subprocess.DEVNULL, {"PATH": os.environ.get("PATH", os.defpath)}
    return subprocess.Popen(
        ("sh", "-c", SCRIPT, "guard", f"{MARK}={os.environ[MARK]}"),
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        env=bare,
        cwd="/",
        start_new_session=True,
    )


def run_mark() -> dict[str, str]:
    """Return the mark of this run, for an environment that does not inherit from this process."""
    return {MARK: os.environ[MARK]}


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """End the remaining processes of the run, and wait until they have ended."""
    guard.communicate()


def restore_sigint() -> None:
    """Make child processes receive SIGINT, also if the shell that started the run ignores it.

    A child process inherits an ignored signal, but not a handler. The run itself still ignores
    SIGINT.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore the signal."""
