"""What pods printed stays for a while: the newest of it, and all of what lives."""

from __future__ import annotations

import os
from pathlib import Path

from services.local.kubelet.kept_logs import prune


def printed(folder: Path, uid: str, at_s: float, size: int = 10) -> None:
    file = folder / f"default_digits-worker-1_{uid}" / "tensorflow.log"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * size)
    os.utime(file, (at_s, at_s))


def left(folder: Path) -> list[str]:
    return sorted(each.name.rpartition("_")[2] for each in folder.iterdir())


def test_the_oldest_go_and_never_one_of_a_pod_that_lives(tmp_path: Path) -> None:
    for number in range(6):
        printed(tmp_path, f"uid-{number}", 100.0 + number)

    prune(tmp_path, {"uid-0"}, most=3)

    assert left(tmp_path) == ["uid-0", "uid-3", "uid-4", "uid-5"]


def test_together_they_are_no_larger_than_they_may_be(tmp_path: Path) -> None:
    for number in range(4):
        printed(tmp_path, f"uid-{number}", 100.0 + number, size=1000)

    prune(tmp_path, {}, most_bytes=2500)

    assert left(tmp_path) == ["uid-2", "uid-3"]


def test_where_nobody_printed_there_is_nothing_to_do(tmp_path: Path) -> None:
    prune(tmp_path / "none", {})
