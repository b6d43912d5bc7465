"""The cgroup manager: limits and measures CPU and memory of pods, by cgroups v1 or v2 or /proc.

Contract, for every implementation:

    open_node(node, cpu)       idempotent; all pods of the node share `cpu` thousandths of a core
    open_pod(node, pod, ...)   before the pod's first process, which joins through `joining(...)`
    resize(node, pod, ...)     takes effect at once, also for running processes
    pod_seconds, node_seconds  CPU seconds since it was opened; of a node: of all pods that ran there
    processes(node, pod)       every process inside, with any parent
    close_pod, close_node      remove the group; its processes were killed before; idempotent

    quota = cpu limit x period; period = 10 ms, longer so that the quota is at least 1 ms

A long period delays remote calls: with the usual 100 ms, a task without quota sleeps up to 100 ms
in the middle of an answer.

`find_cgroup_manager` tries each version. v1 has three hierarchies (cpu, cpuacct, memory) with the
same folders. v2 has one hierarchy, and its inner groups hold no processes. `ProcOnly` limits
nothing. It misses the CPU time of a process between the last measurement and its end.

Written by hand: each version is a few reads and writes of files, and both versions occur.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from services.local.kubelet import processes

log = structlog.get_logger()

SHORTEST_QUOTA_US = 1_000
LONGEST_PERIOD_US = 1_000_000
SHARES_PER_CORE = 1024
NO_LIMIT = -1


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a pod and its CPU request."""

    cpu: int | None = None  # thousandths of a core; None: as much as the node has
    memory: int | None = None  # bytes
    cpu_request: int = 0  # thousandths of a core: its weight when there is not enough for all


def quota_of(cpu: int, period_us: int) -> tuple[int, int]:
    """Return quota and period, in microseconds."""
    period = min(max(period_us, SHORTEST_QUOTA_US * 1000 // max(cpu, 1)), LONGEST_PERIOD_US)
    return max(cpu * period // 1000, SHORTEST_QUOTA_US), period


def shares_of(cpu_request: int) -> int:
    return max(2, cpu_request * SHARES_PER_CORE // 1000)


def weight_of(shares: int) -> int:
    """Convert v1's shares (2..262144) to v2's weight (1..10000) as container runtimes do."""
    return 1 + (shares - 2) * 9999 // 262142


class CgroupManager(Protocol):
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
    """Return the number on the line that begins with a word; 0 if there is none."""
    for line in text.splitlines():
        parts = line.split()
        if parts[:1] == [word]:
            return int(parts[1])
    return 0


def pids_in(folder: Path) -> list[int]:
    file = folder / "cgroup.procs"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def remove_cgroup(folder: Path) -> None:
    """Remove a group, children first. A group in use is left; the next start removes it."""
    if not folder.is_dir():
        return
    for child in list(folder.iterdir()):
        if child.is_dir():
            remove_cgroup(child)
    try:
        folder.rmdir()
    except OSError as error:
        log.debug("LeftControlGroup", folder=str(folder), error=str(error))


def own_group(controller: str, text: str) -> str:
    """Return the group of this process, from the text of /proc/self/cgroup. Version 2 has an empty
    controller.
    """
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def under_own(mount: Path, controller: str, name: str) -> Path:
    """Return a folder below the group of this process, so that its limits hold for the pods, too;
    below the mount if that group is not visible.
    """
    own = mount / own_group(controller, Path("/proc/self/cgroup").read_text()).lstrip("/")
    return (own if own.is_dir() else mount) / name


def find_cgroup_manager(
    name: str, period_us: int, mount: Path = Path("/sys/fs/cgroup")
) -> CgroupManager:
    """Return the best manager that this machine permits."""
    try:
        if (mount / "cgroup.controllers").exists():
            return version_two(mount, name, period_us)
        if not (mount / "cpu").is_dir():
            return ProcOnly(f"there are no control groups at {mount}")
        cpu, account, memory = (under_own(mount / c, c, name) for c in ("cpu", "cpuacct", "memory"))
        return usable(CgroupsV1(cpu, account, memory, period_us))
    except OSError as error:
        return ProcOnly(str(error))


def version_two(mount: Path, name: str, period_us: int) -> CgroupManager:
    """Return a manager below the root, which may hold both processes and groups; or beside the
    group of this process, because no other group may.
    """
    if os.access(mount, os.W_OK):
        base = mount
    else:
        own_group_folder = under_own(mount, "", name).parent
        base = own_group_folder.parent
    (base / "cgroup.subtree_control").write_text("+cpu +memory")
    return usable(CgroupsV2(base / name, period_us))


def usable(manager: CgroupManager) -> CgroupManager:
    """Return the manager. Raises OSError if it cannot create and remove a group."""
    manager.open_node("trial", 1000)
    manager.close_node("trial")
    return manager


def write_burst(file: Path, microseconds: int) -> None:
    """Allow unused time of one period in the next; the mean stays within the limit. Older kernels
    have no such file.
    """
    if file.exists():
        file.write_text(str(microseconds))


class CgroupsV1:
    enforced = True

    def __init__(self, cpu: Path, account: Path, memory: Path, period_us: int) -> None:
        self.cpu = cpu
        self.account = account
        self.memory = memory
        self.period_us = period_us

    @property
    def roots(self) -> list[Path]:
        return list(dict.fromkeys((self.cpu, self.account, self.memory)))

    def open_node(self, node: str, cpu: int) -> None:
        for root in self.roots:
            (root / node).mkdir(parents=True, exist_ok=True)
        self.write_quota(self.cpu / node, cpu)

    def open_pod(self, node: str, pod: str, limits: Limits) -> None:
        for root in self.roots:
            (root / node / pod).mkdir(parents=True, exist_ok=True)
        self.resize(node, pod, limits)

    def resize(self, node: str, pod: str, limits: Limits) -> None:
        folder = self.cpu / node / pod
        (folder / "cpu.shares").write_text(str(shares_of(limits.cpu_request)))
        self.write_quota(folder, self.within_node(node, limits.cpu))
        if limits.memory is not None:
            (self.memory / node / pod / "memory.limit_in_bytes").write_text(str(limits.memory))

    def within_node(self, node: str, cpu: int | None) -> int | None:
        """Return the CPU limit of a pod; None if the limit of its node is not larger. The kernel
        refuses a group more than its parent has.
        """
        if cpu is None:
            return None
        quota = int((self.cpu / node / "cpu.cfs_quota_us").read_text())
        period = int((self.cpu / node / "cpu.cfs_period_us").read_text())
        return None if quota > 0 and cpu * period >= quota * 1000 else cpu

    def write_quota(self, folder: Path, cpu: int | None) -> None:
        quota, period = (NO_LIMIT, self.period_us) if cpu is None else quota_of(cpu, self.period_us)
        quota_file, burst_file = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_burst_us"
        write_burst(burst_file, 0)  # it may not exceed the quota
        quota_file.write_text(str(NO_LIMIT))  # else the old quota is checked with the new period
        (folder / "cpu.cfs_period_us").write_text(str(period))
        quota_file.write_text(str(quota))
        write_burst(burst_file, max(quota, 0))

    def joining(self, node: str, pod: str) -> list[Path]:
        return [root / node / pod / "cgroup.procs" for root in self.roots]

    def processes(self, node: str, pod: str) -> list[int]:
        return pids_in(self.cpu / node / pod)

    def pod_seconds(self, node: str, pod: str) -> float:
        return int((self.account / node / pod / "cpuacct.usage").read_text()) / 1e9

    def node_seconds(self, node: str) -> float:
        return int((self.account / node / "cpuacct.usage").read_text()) / 1e9

    def memory_bytes(self, node: str, pod: str) -> int:
        return int((self.memory / node / pod / "memory.usage_in_bytes").read_text())

    def oom_kills(self, node: str, pod: str) -> int:
        file = self.memory / node / pod / "memory.oom_control"
        return number_after(file.read_text(), "oom_kill") if file.exists() else 0

    def close_pod(self, node: str, pod: str) -> None:
        for root in self.roots:
            remove_cgroup(root / node / pod)

    def close_node(self, node: str) -> None:
        for root in self.roots:
            remove_cgroup(root / node)

    def close(self) -> None:
        for root in self.roots:
            remove_cgroup(root)


class CgroupsV2:
    enforced = True

    def __init__(self, root: Path, period_us: int) -> None:
        self.root, self.period_us = root, period_us

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("+cpu +memory")

    def open_node(self, node: str, cpu: int) -> None:
        self.make(self.root)
        self.make(self.root / node)
        self.write_quota(self.root / node, cpu)

    def open_pod(self, node: str, pod: str, limits: Limits) -> None:
        (self.root / node / pod).mkdir(parents=True, exist_ok=True)
        self.resize(node, pod, limits)

    def resize(self, node: str, pod: str, limits: Limits) -> None:
        folder = self.root / node / pod
        (folder / "cpu.weight").write_text(str(weight_of(shares_of(limits.cpu_request))))
        self.write_quota(folder, limits.cpu)
        if limits.memory is not None:
            (folder / "memory.max").write_text(str(limits.memory))

    def write_quota(self, folder: Path, cpu: int | None) -> None:
        quota, period = (0, self.period_us) if cpu is None else quota_of(cpu, self.period_us)
        burst_file = folder / "cpu.max.burst"
        write_burst(burst_file, 0)  # it may not exceed the quota
        (folder / "cpu.max").write_text(f"{quota or 'max'} {period}")
        write_burst(burst_file, quota)

    def joining(self, node: str, pod: str) -> list[Path]:
        return [self.root / node / pod / "cgroup.procs"]

    def processes(self, node: str, pod: str) -> list[int]:
        return pids_in(self.root / node / pod)

    def pod_seconds(self, node: str, pod: str) -> float:
        return number_after((self.root / node / pod / "cpu.stat").read_text(), "usage_usec") / 1e6

    def node_seconds(self, node: str) -> float:
        return number_after((self.root / node / "cpu.stat").read_text(), "usage_usec") / 1e6

    def memory_bytes(self, node: str, pod: str) -> int:
        return int((self.root / node / pod / "memory.current").read_text())

    def oom_kills(self, node: str, pod: str) -> int:
        return number_after((self.root / node / pod / "memory.events").read_text(), "oom_kill")

    def close_pod(self, node: str, pod: str) -> None:
        remove_cgroup(self.root / node / pod)

    def close_node(self, node: str) -> None:
        remove_cgroup(self.root / node)

    def close(self) -> None:
        remove_cgroup(self.root)


FRESH_S = 0.05


class ProcOnly:
    enforced = False

    def __init__(self, why: str) -> None:
        # (node, pod) -> pid -> the most CPU seconds that were measured
        self.seen: dict[tuple[str, str], dict[int, float]] = {}
        self.ended_s: dict[str, float] = {}  # by node, the CPU seconds of pods that have ended
        self.found: dict[str, list[int]] = {}  # by pod, the processes of the last search
        self.searched_at = -FRESH_S
        hint = "start it with systemd-run --user --scope -p Delegate=yes, or as root"
        log.warning("LimitsNotEnforced", why=why, hint=hint)

    def open_node(self, node: str, cpu: int) -> None:
        self.ended_s.setdefault(node, 0.0)

    def open_pod(self, node: str, pod: str, limits: Limits) -> None:
        self.seen[node, pod] = {}

    def resize(self, node: str, pod: str, limits: Limits) -> None:
        """Nothing to resize."""

    def joining(self, node: str, pod: str) -> list[Path]:
        return []

    def processes(self, node: str, pod: str) -> list[int]:
        """Return the processes of a pod. A search of /proc is used for all pods for `FRESH_S`."""
        if time.monotonic() - self.searched_at >= FRESH_S:
            self.found, self.searched_at = processes.processes_by_pod(), time.monotonic()
        return self.found.get(pod, [])

    def pod_seconds(self, node: str, pod: str) -> float:
        seen = self.seen.setdefault((node, pod), {})
        for pid in self.processes(node, pod):
            seen[pid] = max(seen.get(pid, 0.0), processes.cpu_seconds(pid))
        return sum(seen.values())

    def node_seconds(self, node: str) -> float:
        live = sum(self.pod_seconds(*place) for place in list(self.seen) if place[0] == node)
        return self.ended_s.get(node, 0.0) + live

    def memory_bytes(self, node: str, pod: str) -> int:
        return sum(processes.resident_bytes(pid) for pid in self.processes(node, pod))

    def oom_kills(self, node: str, pod: str) -> int:
        return 0

    def close_pod(self, node: str, pod: str) -> None:
        self.ended_s[node] = self.ended_s.get(node, 0.0) + sum(
            self.seen.pop((node, pod), {}).values()
        )

    def close_node(self, node: str) -> None:
        """Nothing to remove."""

    def close(self) -> None:
        """Nothing to remove."""
