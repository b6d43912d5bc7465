"""A node that is alone with its pods on a busy machine, as far as the machine allows it.

Pods compete with each other for the node's cores, by their groups' weights; whatever else runs on
the machine competes with the node as a whole. So that the one is measured without the other, pods
run on one CPU, everything else of the stack beside it, and the group of all nodes outweighs what
somebody else runs there.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from services.local.kubelet.cgroup_manager import own_group
from services.local.stack import Stack

GROUPS = Path("/sys/fs/cgroup")
WEIGHTS = (("cpu", "cpu", "cpu.shares", 64 * 1024), ("", "", "cpu.weight", 10_000))
"""Mount and controller, the file of a group's weight, and a large one: version 1, version 2."""


def on_a_cpu(stack: Stack) -> None:
    """The stand-in, and so every pod, on the last CPU; the other parts on others, where there are
    any.
    """
    *others, last = sorted(os.sched_getaffinity(0))
    for name, part in stack.parts.items():
        if others and part.process is not None:
            os.sched_setaffinity(part.process.pid, {last} if name == "cluster" else set(others))


def outweigh(stack: Stack) -> None:
    """Once a pod runs: the group above all nodes has a weight beside which others' hardly
    counts.
    """
    cluster = stack.parts["cluster"].process
    for pod in psutil.Process(cluster.pid).children() if cluster else ():
        with contextlib.suppress(OSError):
            _outweigh(Path(f"/proc/{pod.pid}/cgroup").read_text())


def _outweigh(groups: str) -> None:
    """`groups`: of a pod's process, as the kernel tells them."""
    for mount, controller, file, weight in WEIGHTS:
        pod = GROUPS / mount / own_group(controller, groups).lstrip("/")
        if (pod / file).exists():
            (pod.parents[1] / file).write_text(str(weight))
