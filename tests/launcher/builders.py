"""Builders of small messages for the launcher's tests; only what matters has to be given."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.messages import (
    AllocationDecided,
    JobRequested,
    Program,
    Resources,
    Role,
    Span,
    TaskPlan,
)

UID, JOB = 7, "net"
SMALL = Resources(cpu=0.5, memory_gib=1.0)
ONE = Span(start=1, min=1, max=9)
ROLES: dict[str, Role] = {"c": "chief", "p": "ps", "w": "worker"}


def request(**fields: object) -> JobRequested:
    program = Program(name="net.py", digest="sha256-" + "0" * 64)
    made = {
        "job": JOB,
        "program": program,
        "epochs": 1,
        "batch": ONE,
        "ps": ONE,
        "workers": ONE,
        **fields,
    }
    return JobRequested(**made)  # type: ignore[arg-type]


def plan(word: str, resources: Resources = SMALL, index: int = 0) -> TaskPlan:
    """Return the plan of a task: `w3` is the worker with serial 3."""
    serial = int(word[1:])
    return TaskPlan(
        role=ROLES[word[0]],
        index=index,
        serial=serial,
        node=f"node-{serial % 3}",
        resources=resources,
    )


def plans(words: str, resources: Resources = SMALL) -> tuple[TaskPlan, ...]:
    """Return the plans of `c0 p1 w2 w3`; TensorFlow's index counts within each role."""
    listed = words.split()
    index = {word: [w for w in listed if w[0] == word[0]].index(word) for word in listed}
    return tuple(plan(word, resources, index[word]) for word in listed)


def decided(
    generation: int,
    words: str,
    revision: int | None = None,
    resources: Resources = SMALL,
    uid: int = UID,
) -> AllocationDecided:
    return AllocationDecided(
        job=JOB,
        uid=uid,
        generation=generation,
        revision=generation * 10 if revision is None else revision,
        request=request(),
        tasks=plans(words, resources),
        batch=32 if words else 0,
        reason="test",
    )


def sent(body: Any) -> bytes:
    """Return the body as the API server sends it."""
    return msgspec.json.encode(body)


def names(words: str) -> list[str]:
    return [f"{JOB}-{ROLES[word[0]]}-{word[1:]}" for word in words.split()]
