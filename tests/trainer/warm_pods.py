"""Pods that are forked from a warm process: one for each test run, or process of pytest-xdist.

Importing TensorFlow takes three seconds of CPU, and each pod's fork server does it. Here one
process imports TensorFlow for all pods, and starts nothing of it. A pod is a fork of that process,
and runs `services.trainer` as `python -m` does. The fork server is a fork of its pod, as is a
process that the pod starts for a single child.

A test that is about processes or memory starts its pods as production does: `Fleet(warm=False)`.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELOADED = ["pytest", "tests.trainer.preloaded"]
START_S = 120.0
PR_SET_NAME = 15
FIRST_HANDLE, END_OF_HANDLES = 3, 1 << 16  # after standard input, output and error


class WarmPod:
    """The part of `asyncio.subprocess.Process` that a fleet uses."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    async def wait(self) -> int:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        handle = os.dup(self._process.sentinel)
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        self._process.join()
        assert self.returncode is not None
        return self.returncode


def start_pod(environment: Mapping[str, str], log: Path) -> WarmPod:
    """Fork a pod that has this environment and writes its output to this file."""
    process = _warm_context().Process(target=_run_pod, args=(dict(environment), log))
    process.start()
    return WarmPod(process)


async def start_warm_process(environment: Mapping[str, str]) -> None:
    """Start the process that forks pods, unless it runs, and wait until it has imported TensorFlow.

    The import has this environment. The wait is in a thread, so that the event loop can go on.
    """
    _warm_context()
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    await asyncio.to_thread(_fork_nothing)


def _fork_nothing() -> None:
    nothing = _warm_context().Process(target=int)
    nothing.start()
    nothing.join(START_S)
    if nothing.exitcode is None:
        raise TimeoutError(f"the process that forks pods has not started within {START_S:g} s")


@cache
def _warm_context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run_pod(environment: dict[str, str], log: Path) -> None:
    os.setsid()
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _use_own_ports()

    from services.trainer.pod import children

    children._start_process = _fork_process  # type: ignore[assignment]
    _run_module("services.trainer")


def _use_own_ports() -> None:
    """Start the search for free ports at a random one, as a new process does."""
    from shared.runtime import process

    for _ in range(random.randrange(len(process.FREE))):
        next(process._in_turn)


def _run_module(name: str, *words: str) -> None:
    sys.argv = [name, *words]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


class _ForkedProcess:
    """The part of `subprocess.Popen` that `children` uses, for a fork of this process."""

    def __init__(self, pid: int) -> None:
        self.pid, self._ended = pid, False

    def poll(self) -> int | None:
        self._ended = self._ended or os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        return 0 if self._ended else None

    def kill(self) -> None:
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        if not self._ended:
            os.waitpid(self.pid, 0)
            self._ended = True


def _fork_process(module: str, theirs: socket.socket, *words: str) -> _ForkedProcess:
    """Run a module in a fork of this pod that inherits only one end of a socket pair."""
    handle = theirs.fileno()
    pid = os.fork()
    if pid == 0:
        _run_forked_module(module, handle, words)
    theirs.close()
    return _ForkedProcess(pid)


def _run_forked_module(module: str, handle: int, words: tuple[str, ...]) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(FIRST_HANDLE, handle)
        os.closerange(handle + 1, END_OF_HANDLES)
        tempfile.tempdir = None  # TMPDIR has changed
        ctypes.CDLL(None).prctl(PR_SET_NAME, module.rpartition(".")[2].encode())
        _run_module(module, str(handle), *words)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(code)
