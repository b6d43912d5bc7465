"""Whose log does a person want? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.trouble import Trouble

CHIEF = "chief"


@dataclass(frozen=True)
class Pod:
    name: str
    role: str
    made_s: float


def choose(pods: Sequence[Pod], task: str | None) -> Pod:
    """The newest pod of the task (`worker-2`, or the whole pod's name) or role (`worker`); else the newest chief."""
    wanted = task or CHIEF
    fitting = [pod for pod in pods if wanted in (pod.role, pod.name) or pod.name.endswith(f"-{wanted}")]
    if not fitting:
        raise Trouble(f"there is no pod of {wanted!r}; there {_listed(pods)}")
    return max(fitting, key=lambda pod: (pod.made_s, pod.name))


def _listed(pods: Sequence[Pod]) -> str:
    names = sorted(pod.name for pod in pods)
    return f"are {', '.join(names)}" if names else "are none of this job (yet, or any more)"
