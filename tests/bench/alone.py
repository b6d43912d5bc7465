"""Isolate a node and its pods from other load on the machine, as far as the machine allows it.

Pods compete with each other for the cores of the node by the weights of their control groups. Other
processes of the machine compete with the node as a whole. To measure the first without the second,
pods run on one CPU, all other parts of the stack on other CPUs, and the group of all nodes gets a
weight far above that of other processes.
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
"""Mount, controller, weight file and a large weight: for control groups version 1, and version 2.
"""


def on_a_cpu(stack: Stack) -> None:
    """Pin the stand-in, and so every pod, to the last CPU; pin the other parts to the others."""
    *others, last = sorted(os.sched_getaffinity(0))
    for name, part in stack.parts.items():
        if others and part.process is not None:
            os.sched_setaffinity(part.process.pid, {last} if name == "cluster" else set(others))


def outweigh(stack: Stack) -> None:
    """Give the control group above all nodes a large weight. Call it when a pod runs."""
    cluster = stack.parts["cluster"].process
    for pod in psutil.Process(cluster.pid).children() if cluster else ():
        with contextlib.suppress(OSError):
            _outweigh(Path(f"/proc/{pod.pid}/cgroup").read_text())


def _outweigh(groups: str) -> None:
    """Set the weight; `groups` is the text of /proc/PID/cgroup of a pod's process."""
    for mount, controller, file, weight in WEIGHTS:
        pod = GROUPS / mount / own_group(controller, groups).lstrip("/")
        if (pod / file).exists():
            (pod.parents[1] / file).write_text(str(weight))
