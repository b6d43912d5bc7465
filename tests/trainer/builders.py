"""Builders of facts about one job. They set only what matters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.trainer.protocol import Assignment
from shared.messages import (
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    HandOverOrdered,
    JobRequested,
    Program,
    Resources,
    Span,
    TaskAddress,
    TrainingResumed,
)

JOB = {"job": "digits", "uid": 7}


def request(**fields: Any) -> JobRequested:
    chosen: dict[str, Any] = {
        "job": "digits",
        "program": Program(name="digits.py", digest="sha256-" + "0" * 64),
        "epochs": 3,
        "batch": Span(start=32, min=16, max=64),
        "ps": Span(start=1, min=1, max=4),
        "workers": Span(start=1, min=1, max=4),
        **fields,
    }
    return JobRequested(**chosen)


def assignment(**fields: Any) -> Assignment:
    """Return the assignment of a chief."""
    chosen: dict[str, Any] = {
        "generation": 1,
        "role": "chief",
        "index": 0,
        "cluster": {"chief": ["h:1"], "ps": ["h:2"], "worker": ["h:3"]},
        "request": request(),
        "batch": 32,
        "program": "digits.py",
        "checkpoint_dir": "none",
        "resources": Resources(cpu=1.0),
        "warms_up": False,
        **fields,
    }
    return Assignment(**chosen)


def spec(
    generation: int,
    previous: int | None = None,
    handover: str = "make-before-break",
    pods: Iterable[str] = (),
) -> ClusterSpecPublished:
    """Return a spec with these pods (`<role>-<anything>`), or with one pod of each role."""
    names = list(pods) or ["chief-0", "ps-0", "worker-0"]
    roles: list[Any] = [n.split("-")[0] for n in names]
    tasks = tuple(
        TaskAddress(role=role, index=roles[:at].count(role), pod=name, host="h", port=1)
        for at, (role, name) in enumerate(zip(roles, names, strict=True))
    )
    return ClusterSpecPublished(
        **JOB,
        generation=generation,
        revision=generation,
        request=request(handover=handover),
        tasks=tasks,
        batch=32,
        previous=previous,
    )


def order(generation: int, previous: int | None = None) -> HandOverOrdered:
    return HandOverOrdered(**JOB, generation=generation, previous=previous)


def final(
    generation: int, path: str | None = None, successor: int | None = None
) -> CheckpointSaved:
    chosen = f"/c/gen-{generation}/ckpt-10" if path is None else path
    about = {
        "step": 10,
        "samples": 320,
        "path": chosen,
        "seconds": 0.1,
        "final": True,
        "successor": successor,
    }
    return CheckpointSaved(**JOB, generation=generation, **about)


def resumed(generation: int) -> TrainingResumed:
    return TrainingResumed(**JOB, generation=generation, step=11, samples=352)


def abandoned(generation: int) -> GenerationAbandoned:
    return GenerationAbandoned(**JOB, generation=generation, reason="unschedulable")
