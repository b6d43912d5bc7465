"""What pods printed stays when they are gone, for whoever asks what happened: the newest of it.

Law: no more than `PODS` folders and `BYTES` in all, the oldest go first, and never one of a pod
that lives.
"""

from __future__ import annotations

import shutil
from collections.abc import Container
from pathlib import Path

PODS, BYTES = 100, 256 << 20


def prune(folder: Path, living: Container[str], most: int = PODS, most_bytes: int = BYTES) -> None:
    """`living`: uids; a pod's folder ends with its own."""
    gone = [each for each in _folders(folder) if each.name.rpartition("_")[2] not in living]
    newest = sorted(gone, key=_written_s, reverse=True)
    left = most_bytes
    for number, each in enumerate(newest):
        left -= sum(file.stat().st_size for file in each.iterdir())
        if number >= most or left < 0:
            shutil.rmtree(each, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def _written_s(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)
