"""`weir up` says when its nodes are others than those of the one before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.other_cluster import KEPT, said_of


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    return tmp_path / "given.yaml"


def said(cluster: Path, nodes: str) -> str:
    cluster.write_text(f"nodes: [{nodes}]")
    return said_of(cluster.parent, cluster)


def test_the_first_and_the_same_again_say_nothing(cluster: Path) -> None:
    assert said(cluster, "{count: 4, cpu: 0.5, memory_gib: 4}") == ""
    assert said(cluster, "{count: 4, memory_gib: 4.0, cpu: 0.5}") == ""


def test_another_one_is_told_beside_the_one_before_and_only_once(cluster: Path) -> None:
    said(cluster, "{count: 3, cpu: 1, memory_gib: 6}")
    now = "{name: a, cpu: 0.5, memory_gib: 4}, {name: b, count: 2, cpu: 2, memory_gib: 4, gpu: 1}"

    assert said(cluster, now) == (
        "The cluster is another than that of the `weir up` before: "
        "1 node of 0.5 cpu, 4 GiB, 2 nodes of 2 cpu, 4 GiB, 1 GPU; it was 3 nodes of 1 cpu, 6 GiB.\n"
    )
    assert said(cluster, now) == ""


def test_what_is_kept_and_cannot_be_read_says_nothing(cluster: Path) -> None:
    (cluster.parent / KEPT).write_bytes(b"\xff")
    assert said(cluster, "{cpu: 1}") == ""
