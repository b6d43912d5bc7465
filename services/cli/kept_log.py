"""What pods printed, as the one-machine cluster keeps it also of those that are gone. Edge.

<folder>/<namespace>_<pod>_<uid>/<container>.log        how many are kept: services/local/kubelet/kubelet.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from services.cli.pod_choice import Pod

TASK = re.compile(r"(chief|ps|worker)-\d+")


def kept(folder: str, namespace: str, job: str) -> list[Pod]:
    """Of one job's pods, living ones among them; `made_s`: when each last printed."""
    try:
        found = [*Path(folder).iterdir()] if folder else []
    except OSError:
        return []
    return [pod for each in found for pod in _pod(each, namespace, job)]


def _pod(folder: Path, namespace: str, job: str) -> Iterator[Pod]:
    space, name, *_ = [*folder.name.split("_"), ""]
    task = TASK.fullmatch(name.removeprefix(f"{job}-")) if name.startswith(f"{job}-") else None
    file = next(iter(sorted(folder.glob("*.log"))), None) if task and space == namespace else None
    if task and file:
        yield Pod(name, task[1], file.stat().st_mtime, file)
