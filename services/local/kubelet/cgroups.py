"""Cpu and memory of pods: limited and measured by control groups where the machine lets us, by
/proc where it does not.

Contract, for every implementation:

    open_node(node, cpu)       twice is once. What runs on the node shares `cpu` thousandths of a core.
    open_pod(node, pod, ...)   before the pod's first process; its processes join through `joining(...)`.
    resize(node, pod, ...)     takes effect at once, for processes that run already.
    pod_seconds / node_seconds cpu seconds used since it was opened; of a node: by all pods that ever ran
    there.
    processes(node, pod)       every process inside, whoever its parent is now.
    close_pod / close_node     removes; what still runs inside was killed before. A missing one is no error.

    quota = cpu limit x period; period = 10 ms, longer where that would give a quota below 1 ms,
    which kernels refuse.

A long period makes remote calls wait: with the usual 100 ms, a task that has spent its quota sleeps
up to 100 ms in the middle of an answer.
"""

from pathlib import Path
from typing import Protocol

import msgspec
import structlog

log = structlog.get_logger()

SHORTEST_QUOTA_US = 1_000
LONGEST_PERIOD_US = 1_000_000
SHARES_PER_CORE = 1024
NO_LIMIT = -1


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod may use and what it is promised."""

    cpu: int | None = None  # thousandths of a core; None: as much as the node has
    memory: int | None = None  # bytes
    cpu_request: int = 0  # thousandths of a core: its weight when there is not enough for all


def quota_of(cpu: int, period_us: int) -> tuple[int, int]:
    """Quota and period, in microseconds."""
    period = min(max(period_us, SHORTEST_QUOTA_US * 1000 // max(cpu, 1)), LONGEST_PERIOD_US)
    return max(cpu * period // 1000, SHORTEST_QUOTA_US), period


def shares_of(cpu_request: int) -> int:
    return max(2, cpu_request * SHARES_PER_CORE // 1000)


def weight_of(shares: int) -> int:
    """cgroup v2's 1..10000 for v1's 2..262144, as container runtimes convert it."""
    return 1 + (shares - 2) * 9999 // 262142


class Cgroups(Protocol):
    enforced: bool

    def open_node(self, node: str, cpu: int) -> None: ...
    def open_pod(self, node: str, pod: str, limits: Limits) -> None: ...
    def resize(self, node: str, pod: str, limits: Limits) -> None: ...
    def joining(self, node: str, pod: str) -> list[Path]: ...
    def processes(self, node: str, pod: str) -> list[int]: ...
    def pod_seconds(self, node: str, pod: str) -> float: ...
    def node_seconds(self, node: str) -> float: ...
    def memory_bytes(self, node: str, pod: str) -> int: ...
    def oom_kills(self, node: str, pod: str) -> int: ...
    def close_pod(self, node: str, pod: str) -> None: ...
    def close_node(self, node: str) -> None: ...
    def close(self) -> None: ...


def number_after(text: str, word: str) -> int:
    return next(
        (int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [word]), 0
    )


def pids_in(folder: Path) -> list[int]:
    file = folder / "cgroup.procs"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def remove(folder: Path) -> None:
    """Children first; a group that is still in use is left for the next start to remove."""
    if not folder.is_dir():
        return
    for child in [path for path in folder.iterdir() if path.is_dir()]:
        remove(child)
    try:
        folder.rmdir()
    except OSError as error:
        log.debug("LeftControlGroup", folder=str(folder), error=str(error))
