"""Every process that a test run starts ends with the run, also after `kill -9`; and it hears
SIGINT.

The run puts a mark into its own environment, which each process below it inherits, whoever starts
it. A shell at the far end of a pipe (the one that `services/local` uses for its pods) waits until
the pipe closes, which the kernel does when the run ends for whatever reason; it then kills every
process that carries the mark. A run inside a run (a worker of pytest-xdist, a test that starts
pytest) extends the mark, so the outer run ends the inner one, too.

Who gives a process an environment of its own adds `run_mark()`. Two kinds of processes have no mark
and end otherwise: pods of `services/local`, whose own shell ends them, and Chromium, which ends
when its pipe to the run closes.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from types import FrameType

from services.local.kubelet.processes import SCRIPT

MARK = "TEST_RUN"
"""Not `WEIR_...`: services refuse settings that they do not know."""


def start_guard() -> subprocess.Popen[bytes]:
    """Mark this run, and start the shell that ends what carries the mark."""
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
    """The mark of this run, for an environment that does not begin with this process's own."""
    return {MARK: os.environ[MARK]}


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """End the run's processes that are left, and wait until that is done."""
    guard.communicate()


def restore_sigint() -> None:
    """Let what the run starts hear SIGINT, as at a terminal, also where the shell that started the
    run ignores it.

    A process inherits an ignored signal, but not a handler. The run itself goes on ignoring it, as
    its shell wishes.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing."""
