"""Whether `weir up` has other nodes than the one before it in the same folder: each keeps its
cluster's file. Edge.
"""

from __future__ import annotations

from pathlib import Path

from services.local.cluster_spec import ClusterSpec, InvalidClusterFile, NodeSpec, parse_cluster
from shared.text import format_count, format_names

KEPT = "cluster.yaml"
OTHER = "The cluster is another than that of the `weir up` before: {now}; it was {before}."
KINDS_MOST = 3


def said_of(folder: Path, cluster: Path) -> str:
    """In one line, and empty where they are the same or nobody knows; from now on it is this
    one.
    """
    before, text = _kept(folder), cluster.read_text()
    now = parse_cluster(text)
    (folder / KEPT).write_text(text)
    return (
        f"{OTHER.format(now=_told(now), before=_told(before))}\n"
        if before and _sizes(before) != _sizes(now)
        else ""
    )


def _kept(folder: Path) -> ClusterSpec | None:
    try:
        return parse_cluster((folder / KEPT).read_text())
    except (OSError, UnicodeDecodeError, InvalidClusterFile):
        return None


def _sizes(spec: ClusterSpec) -> dict[str, tuple[float, float, int]]:
    return {
        name: (node.cpu, node.memory_gib, node.gpu) for name, node in spec.nodes_by_name().items()
    }


def _told(spec: ClusterSpec) -> str:
    return format_names([_kind(node) for node in spec.nodes], KINDS_MOST)


def _kind(node: NodeSpec) -> str:
    devices = f", {format_count(node.gpu, 'GPU')}" if node.gpu else ""
    return (
        f"{format_count(node.count, 'node')} of {node.cpu:g} cpu, {node.memory_gib:g} GiB{devices}"
    )
