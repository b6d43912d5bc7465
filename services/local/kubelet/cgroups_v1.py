"""Control groups, version 1: three hierarchies, cpu, cpuacct and memory, with the same folders in
each.
"""

from pathlib import Path

from services.local.kubelet.cgroups import (
    NO_LIMIT,
    Limits,
    number_after,
    pids_in,
    quota_of,
    remove,
    shares_of,
)


class VersionOne:
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
        """The kernel refuses a group more than its parent has; the node bounds it anyway."""
        quota = int((self.cpu / node / "cpu.cfs_quota_us").read_text())
        period = int((self.cpu / node / "cpu.cfs_period_us").read_text())
        return None if cpu is None or (quota > 0 and cpu * period >= quota * 1000) else cpu

    def write_quota(self, folder: Path, cpu: int | None) -> None:
        quota, period = (NO_LIMIT, self.period_us) if cpu is None else quota_of(cpu, self.period_us)
        self.allow_burst(
            folder, 0
        )  # it may not exceed the quota, so it goes first when that changes
        (folder / "cpu.cfs_quota_us").write_text(
            str(NO_LIMIT)
        )  # else quota and period are checked half-way
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
        self.allow_burst(folder, max(quota, 0))

    def allow_burst(self, folder: Path, microseconds: int) -> None:
        """What was not used in one period may be used in the next; on average the limit stays.
        Older kernels cannot.
        """
        if (folder / "cpu.cfs_burst_us").exists():
            (folder / "cpu.cfs_burst_us").write_text(str(microseconds))

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
            remove(root / node / pod)

    def close_node(self, node: str) -> None:
        for root in self.roots:
            remove(root / node)

    def close(self) -> None:
        for root in self.roots:
            remove(root)
