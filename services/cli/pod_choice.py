"""Whose log does a person want? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.cli.trouble import Trouble

CHIEF = "chief"


@dataclass(frozen=True)
class Pod:
    """`kept`: where its log is, if the pod is gone."""

    name: str
    role: str
    made_s: float
    kept: Path | None = None


def choose(pods: Sequence[Pod], task: str | None, gone: Sequence[Pod] = ()) -> Pod:
    """The newest pod of the task (`worker-2`, or the whole pod's name) or role (`worker`); else the
    newest chief.

    One that is `gone` where none that is there fits.
    """
    wanted = task or CHIEF
    fitting = _fitting(pods, wanted) or _fitting(gone, wanted)
    if not fitting:
        raise Trouble(f"there is no pod of {wanted!r}; there {_listed([*pods, *gone])}")
    return max(fitting, key=lambda pod: (pod.made_s, pod.name))


def _fitting(pods: Sequence[Pod], wanted: str) -> list[Pod]:
    return [
        pod for pod in pods if wanted in (pod.role, pod.name) or pod.name.endswith(f"-{wanted}")
    ]


def _listed(pods: Sequence[Pod]) -> str:
    names = sorted({pod.name for pod in pods})
    return f"are {', '.join(names)}" if names else "are none of this job (yet, or any more)"
