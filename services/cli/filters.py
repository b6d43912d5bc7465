"""Which subjects of each stream a person wants to see: pure."""

from __future__ import annotations

from shared.messages import DeadLetter
from shared.subjects import DEAD, FACTS, ORDERS, PREFIX

ANY = "*"
AREAS = {ORDERS: ("job", "allocation", "cluster"), FACTS: ("task", "training", "capacity")}
OF_NODES = "capacity"
REQUESTS = ("job.requested", "job.cancel")  # may be said without a namespace: then it is the default one


def filters(stream: str, job: str | None = None, namespace: str | None = None) -> list[str]:
    """A consumer's filters on one stream: all of it, or what is about one job, or about a namespace's jobs."""
    if job is None and namespace is None:
        return [f"{DeadLetter.PREFIX}.>"] if stream == DEAD else [f"{PREFIX}.{area}.>" for area in AREAS[stream]]
    tail = f"{namespace or ANY}.{job or ANY}"
    if stream == DEAD:
        return [f"{DeadLetter.PREFIX}.{PREFIX}.{ANY}.{ANY}.{tail}"]
    return [f"{PREFIX}.{area}.{ANY}.{tail}" for area in AREAS[stream] if area != OF_NODES] + _short(
        stream, job, namespace
    )


def _short(stream: str, job: str | None, namespace: str | None) -> list[str]:
    if stream != ORDERS or namespace not in (None, "default"):
        return []
    return [f"{PREFIX}.{tag}.{job or ANY}" for tag in REQUESTS]
