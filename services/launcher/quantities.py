"""Kubernetes quantities: cores and GiB to text and back.

A quantity is a number with a decimal (m, k, M, G, ...) or binary (Ki, Mi, Gi, ...) suffix. The server rewrites them
("1000m" becomes "1", "1024Mi" becomes "1Gi"), so two of them are compared as numbers, in milli-cores and MiB.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.messages import Resources

GIB = 1 << 30
SCALES = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
    **{f"{letter}i": float(1 << 10 * (power + 1)) for power, letter in enumerate("KMGTPE")},
}
GPU = "nvidia.com/gpu"


def number(quantity: object) -> float:
    """Raises `ValueError` or `KeyError` for what is no quantity."""
    text = str(quantity)
    digits = text.rstrip("numkMGTPEKi")
    return float(digits) * SCALES[text[len(digits) :]]


def quantities(resources: Resources) -> dict[str, str]:
    """As a container's requests and limits have them."""
    found = {"cpu": f"{millicores(resources)}m", "memory": f"{mebibytes(resources)}Mi"}
    return {**found, GPU: str(resources.gpu)} if resources.gpu else found


def resources(listed: Mapping[str, object]) -> Resources:
    return Resources(
        cpu=number(listed.get("cpu", 0)),
        memory_gib=number(listed.get("memory", 0)) / GIB,
        gpu=int(number(listed.get(GPU, 0))),
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
