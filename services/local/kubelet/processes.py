"""The processes of pods, found in /proc by an environment variable that every descendant inherits.

    WEIR_LOCAL_POD=<digest of the data folder>/<pod uid>/<container>

A parent can end and a session can be left, but the environment at the start of a process stays
readable. So all processes of a pod can be found, also at the next start of this program.

`ProcessReaper` leaves no process behind. Its shell waits at the read end of a pipe; only this
program holds the write end. When this program ends in any way, the pipe closes. The shell then
kills every process with this cluster's mark, and ends. It has its own session, so an interrupt of
the terminal does not reach it. If the shell is killed too, the next start with the same data folder
kills the leftovers first.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import structlog

log = structlog.get_logger()

MARK = "WEIR_LOCAL_POD"
PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cluster_id(data: Path) -> str:
    """Return the id that separates this cluster's processes from those of other clusters here."""
    return hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:12]


def container_mark(home: str, pod: str, container: str) -> str:
    return f"{home}/{pod}/{container}"


def process_mark(pid: int) -> str:
    """Return the mark of a process; empty if it has none, or has just ended."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    prefix = MARK.encode() + b"="
    for variable in environment.split(b"\0"):
        if variable.startswith(prefix):
            return variable.removeprefix(prefix).decode()
    return ""


def all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def processes_of_cluster(part: str) -> list[int]:
    """Return the processes with this part in their mark: a cluster id or a pod's uid."""
    return [pid for pid in all_pids() if part in process_mark(pid).split("/")]


def processes_by_pod() -> dict[str, list[int]]:
    """Return all processes of all pods, by the pod's uid."""
    found: dict[str, list[int]] = {}
    for pid in all_pids():
        parts = process_mark(pid).split("/")
        if len(parts) == 3:
            found.setdefault(parts[1], []).append(pid)
    return found


def processes_of_container(mark: str) -> list[int]:
    """Return the processes of one container."""
    return [pid for pid in all_pids() if process_mark(pid) == mark]


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (the second may contain blanks); empty
    if the process has ended.
    """
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its reaped children: utime + stime + cutime + cstime,
    fields 14 to 17.
    """
    return sum(int(ticks) for ticks in stat_fields(pid)[11:15]) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[21]) * PAGE_BYTES if len(fields) > 21 else 0


def is_running(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def send_signal(pid: int, number: int) -> None:
    """Send a signal. A process that has ended, or is no longer ours, is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError) as error:
        log.debug("SignalNotSent", pid=pid, error=str(error))


def kill_processes(pids: list[int]) -> None:
    for pid in pids:
        send_signal(pid, signal.SIGKILL)


# $1 is the mark. A line on the pipe means a regular end; its close without a line means a crash.
# Three times, because a process may fork during the search.
SCRIPT = """
trap '' INT TERM HUP
read -r _ && exit 0
for turn in 1 2 3; do
  for file in $(grep -ls "$1" /proc/[0-9]*/environ); do
    file="${file#/proc/}"; kill -9 "${file%/environ}"
  done
done
"""
KILL_TIMEOUT_S = 2.0


class ProcessReaper:
    def __init__(self, home: str) -> None:
        self.home = home
        self.shell: Process | None = None

    async def start(self) -> None:
        kill_leftovers(self.home)
        command = ("sh", "-c", SCRIPT, "keeper", f"{MARK}={self.home}/")
        bare = {"PATH": os.environ.get("PATH", os.defpath)}
        self.shell = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True, env=bare
        )

    async def stop(self) -> None:
        if self.shell is not None and self.shell.stdin is not None:
            kill_leftovers(self.home)
            self.shell.stdin.write(b"done\n")
            self.shell.stdin.close()
            await self.shell.wait()


def kill_leftovers(home: str) -> None:
    """Kill the processes that an earlier start of this cluster left, and wait for their end."""
    end = time.monotonic() + KILL_TIMEOUT_S
    left = processes_of_cluster(home)
    if left:
        log.warning("SweptOldProcesses", pids=left)
    while left and time.monotonic() < end:
        kill_processes(left)
        time.sleep(0.01)
        left = [pid for pid in processes_of_cluster(home) if is_running(pid)]
