"""Which subjects of each stream a person wants to see: pure."""

from __future__ import annotations

from shared import subjects
from shared.bus import streams

ANY = "*"
OF_JOBS = ("job", "allocation", "cluster", "task", "training")
REQUESTS = ("job.requested", "job.cancel")  # these may be said without a namespace


def filters(stream: str, job: str | None = None, namespace: str | None = None) -> list[str]:
    """A consumer's filters on one stream: all of it, or what is about one job, or the jobs of a namespace."""
    if job is None and namespace is None:
        return [s for config in streams() if config.name == stream for s in config.subjects or ()]
    tail = f"{namespace or ANY}.{job or ANY}"
    if stream == subjects.DEAD:
        return [f"weir-dead.{subjects.PREFIX}.{ANY}.{ANY}.{tail}"]
    return [f"{subjects.PREFIX}.{area}.{ANY}.{tail}" for area in _areas(stream)] + _short(stream, job, namespace)


def _areas(stream: str) -> list[str]:
    held = [s for config in streams() if config.name == stream for s in config.subjects or ()]
    return [area for area in OF_JOBS if f"{subjects.PREFIX}.{area}.>" in held]


def _short(stream: str, job: str | None, namespace: str | None) -> list[str]:
    if stream != subjects.ORDERS or namespace not in (None, "default"):
        return []
    return [f"{subjects.PREFIX}.{tag}.{job or ANY}" for tag in REQUESTS]
