"""Nobody is left behind.

A small shell waits at the far end of a pipe whose near end only this program holds. When this
program ends, however it ends, the pipe closes; the shell then kills every process that carries this
cluster's mark, and goes. It sits in a session of its own, so that what interrupts the terminal does
not interrupt it. And should the shell be killed too, the next start with the same data folder
sweeps first.
"""

import asyncio
import os
import time
from asyncio.subprocess import DEVNULL, PIPE, Process

import structlog

from services.local.kubelet import processes

log = structlog.get_logger()

# $1 is the mark. A line says that all is well; the pipe's end without one says that we died.
# Three times, because a process may fork while we look.
SCRIPT = """
trap '' INT TERM HUP
read -r _ && exit 0
for turn in 1 2 3; do
  for file in $(grep -ls "$1" /proc/[0-9]*/environ); do
    file="${file#/proc/}"; kill -9 "${file%/environ}"
  done
done
"""
PATIENCE_S = 2.0


class Keeper:
    def __init__(self, home: str) -> None:
        self.home = home
        self.shell: Process | None = None

    async def start(self) -> None:
        sweep(self.home)
        command = ("sh", "-c", SCRIPT, "keeper", f"{processes.MARK}={self.home}/")
        bare = {"PATH": os.environ.get("PATH", os.defpath)}
        self.shell = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True, env=bare
        )

    async def stop(self) -> None:
        if self.shell is not None and self.shell.stdin is not None:
            sweep(self.home)
            self.shell.stdin.write(b"done\n")
            self.shell.stdin.close()
            await self.shell.wait()


def sweep(home: str) -> None:
    """Kill what an earlier start of this cluster left, and wait until it has gone."""
    end = time.monotonic() + PATIENCE_S
    left = processes.marked(home)
    if left:
        log.warning("SweptOldProcesses", pids=left)
    while left and time.monotonic() < end:
        processes.kill(left)
        time.sleep(0.01)
        left = [pid for pid in processes.marked(home) if processes.is_running(pid)]
