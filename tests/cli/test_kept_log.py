"""What pods printed is found by their job, also of those that are gone."""

from __future__ import annotations

import os
from pathlib import Path

from services.cli.kept_log import kept
from services.cli.pod_choice import Pod, choose


def printed(
    folder: Path, pod: str, at_s: float, namespace: str = "default", text: str = "hello\n"
) -> Path:
    file = folder / f"{namespace}_{pod}_0a11a717-d315" / "tensorflow.log"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    os.utime(file, (at_s, at_s))
    return file


def test_only_pods_of_this_very_job_are_found(tmp_path: Path) -> None:
    file = printed(tmp_path, "digits-chief-0", 100.0)
    printed(tmp_path, "digits-two-chief-0", 200.0)
    printed(tmp_path, "digits-chief-0", 300.0, namespace="team-a")
    printed(tmp_path, "digits-helper-1", 300.0)
    (tmp_path / "something else").mkdir()
    (tmp_path / "default_digits-ps-1_uid").mkdir()

    assert kept(str(tmp_path), "default", "digits") == [Pod("digits-chief-0", "chief", 100.0, file)]


def test_where_nothing_is_kept_nothing_is_found(tmp_path: Path) -> None:
    assert kept("", "default", "digits") == kept(str(tmp_path / "none"), "default", "digits") == []


def test_who_is_there_is_chosen_before_who_is_gone() -> None:
    there = [Pod("digits-chief-3", "chief", 10.0), Pod("digits-worker-4", "worker", 10.0)]
    gone = [
        Pod("digits-chief-0", "chief", 99.0, Path("a")),
        Pod("digits-worker-2", "worker", 98.0, Path("b")),
    ]

    assert choose(there, None, gone) is there[0] and choose(there, "worker-2", gone) is gone[1]
    assert choose([], None, gone) is gone[0]
