"""Control groups, version 2: one hierarchy, whose middle groups hold no processes."""

from pathlib import Path

from services.local.kubelet.cgroups import (
    Limits,
    number_after,
    pids_in,
    quota_of,
    remove,
    shares_of,
    weight_of,
)


class VersionTwo:
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
        quota, period = ("max", self.period_us) if cpu is None else quota_of(cpu, self.period_us)
        self.allow_burst(
            folder, 0
        )  # it may not exceed the quota, so it goes first when that changes
        (folder / "cpu.max").write_text(f"{quota} {period}")
        self.allow_burst(folder, 0 if quota == "max" else int(quota))

    def allow_burst(self, folder: Path, microseconds: int) -> None:
        """What was not used in one period may be used in the next; on average the limit stays.
        Older kernels cannot.
        """
        if (folder / "cpu.max.burst").exists():
            (folder / "cpu.max.burst").write_text(str(microseconds))

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
        remove(self.root / node / pod)

    def close_node(self, node: str) -> None:
        remove(self.root / node)

    def close(self) -> None:
        remove(self.root)
