"""No control groups: nothing is limited, and what was used is read from /proc.

What a process used between the last look and its end is lost.
"""

import time
from pathlib import Path

import structlog

from services.local.kubelet import processes
from services.local.kubelet.cgroups import Limits

log = structlog.get_logger()

FRESH_S = 0.05


class NotPermitted:
    enforced = False

    def __init__(self, why: str) -> None:
        self.seen: dict[
            tuple[str, str], dict[int, float]
        ] = {}  # (node, pod) -> pid -> most seconds seen
        self.gone: dict[str, float] = {}  # seconds of pods that have ended, by node
        self.found: dict[str, list[int]] = {}  # the pods' processes, as of the last look
        self.looked_at = -FRESH_S
        hint = "systemd-run --user --scope -p Delegate=yes, or root, would permit it"
        log.warning("LimitsNotEnforced", why=why, hint=hint)

    def open_node(self, node: str, cpu: int) -> None:
        self.gone.setdefault(node, 0.0)

    def open_pod(self, node: str, pod: str, limits: Limits) -> None:
        self.seen[node, pod] = {}

    def resize(self, node: str, pod: str, limits: Limits) -> None:
        """Nothing to resize."""

    def joining(self, node: str, pod: str) -> list[Path]:
        return []

    def processes(self, node: str, pod: str) -> list[int]:
        """One look at /proc serves all pods for a moment."""
        if time.monotonic() - self.looked_at >= FRESH_S:
            self.found, self.looked_at = processes.by_pod(), time.monotonic()
        return self.found.get(pod, [])

    def pod_seconds(self, node: str, pod: str) -> float:
        seen = self.seen.setdefault((node, pod), {})
        for pid in self.processes(node, pod):
            seen[pid] = max(seen.get(pid, 0.0), processes.cpu_seconds(pid))
        return sum(seen.values())

    def node_seconds(self, node: str) -> float:
        live = sum(self.pod_seconds(*place) for place in list(self.seen) if place[0] == node)
        return self.gone.get(node, 0.0) + live

    def memory_bytes(self, node: str, pod: str) -> int:
        return sum(processes.resident_bytes(pid) for pid in self.processes(node, pod))

    def oom_kills(self, node: str, pod: str) -> int:
        return 0

    def close_pod(self, node: str, pod: str) -> None:
        self.gone[node] = self.gone.get(node, 0.0) + sum(self.seen.pop((node, pod), {}).values())

    def close_node(self, node: str) -> None:
        """Nothing to remove."""

    def close(self) -> None:
        """Nothing to remove."""
