"""What a task may use as Kubernetes writes it, and back.

The server rewrites quantities ("1000m" becomes "1", "1024Mi" becomes "1Gi"), so two of them are
compared as numbers, in millicores and MiB.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.kube.objects import GIB, GPU, whole_units
from shared.messages import Resources


def quantities(resources: Resources) -> dict[str, str]:
    """As a container's requests and limits have them."""
    found = {"cpu": f"{millicores(resources)}m", "memory": f"{mebibytes(resources)}Mi"}
    return {**found, GPU: str(resources.gpu)} if resources.gpu else found


def resources(listed: Mapping[str, object]) -> Resources:
    return Resources(
        cpu=whole_units("cpu", listed.get("cpu", 0)) / 1000,
        memory_gib=whole_units("memory", listed.get("memory", 0)) / GIB,
        gpu=whole_units(GPU, listed.get(GPU, 0)),
    )


def millicores(resources: Resources) -> int:
    return round(resources.cpu * 1000)


def mebibytes(resources: Resources) -> int:
    return round(resources.memory_gib * 1024)


def same(one: Resources, other: Resources) -> bool:
    """Alike in what can change in place."""
    return (millicores(one), mebibytes(one)) == (millicores(other), mebibytes(other))


def grows(old: Resources, new: Resources) -> bool:
    return millicores(new) >= millicores(old) and mebibytes(new) >= mebibytes(old)
