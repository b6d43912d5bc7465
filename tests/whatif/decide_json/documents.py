"""Documents for the tests: two small nodes, and one job that may grow."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from services.allocator.settings import Rules
from services.whatif.decide_json.answer import Answer, DocumentSession, JobDecision, Refusal

CORE = {"cpu": 1.0, "memory_gib": 1.0}
REQUEST: dict[str, Any] = {
    "batch": 64,
    "ps": {"start": 1, "min": 1, "max": 2},
    "workers": {"start": 1, "min": 1, "max": 4},
    "resources": {"ps": CORE, "worker": CORE},
}
DEVICES: dict[str, Any] = {
    "batch": {"start": 64, "min": 64, "max": 256},
    "ps": 0,
    "workers": {"start": 1, "min": 1, "max": 4},
    "resources": {"worker": {"gpu": 1}},
}


def node(name: str = "n1", cpu: float = 2, **fields: Any) -> dict[str, Any]:
    return {"name": name, "cpu": cpu, "memory_gib": 64, **fields}


def job(name: str = "one", request: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"job": name, "request": request or REQUEST, **fields}


def document(now: float, nodes: list[dict[str, Any]], *jobs: dict[str, Any]) -> bytes:
    return json.dumps({"now": now, "nodes": nodes, "jobs": jobs}).encode()


def desk(policy: str = "config-manager", **rules: Any) -> DocumentSession:
    ticks = count()
    return DocumentSession(
        Rules(**({"policy": policy, "cooldown_s": 0.0} | rules)), lambda: next(ticks) / 1000.0
    )


def ask(
    at: DocumentSession, now: float, nodes: list[dict[str, Any]], *jobs: dict[str, Any]
) -> list[JobDecision]:
    answer = at.answer(document(now, nodes, *jobs))
    assert isinstance(answer, Answer), answer
    return list(answer.decisions)


def refused(at: DocumentSession, line: bytes) -> list[str]:
    answer = at.answer(line)
    assert isinstance(answer, Refusal), answer
    return list(answer.errors)


def current(decided: JobDecision, **fields: Any) -> dict[str, Any]:
    """Return the `current` field of a driver that has carried out the decision."""
    return {
        "chief": decided.chief,
        "ps": decided.ps,
        "workers": decided.workers,
        "batch": decided.batch,
        **fields,
    }


def shape(decided: JobDecision) -> tuple[int, int]:
    return len(decided.ps), len(decided.workers)
