"""Which generation is being brought up, which are stale, and whose pods must stay.

The newest generation wins. One exception: once the running generation has saved its final
checkpoint for another, that one is `locked`: nothing runs that could go on instead, so it has its
chance until it resumes or its time is up.
"""

from __future__ import annotations

from services.launcher.facts import PodFact
from services.launcher.jobs import Job, ahead, locked, paused
from services.launcher.view import View
from shared.messages import OF_NODE, GenerationAbandoned, TaskPlan
from shared.text import cut_middle

KEPT, HEAD = 4_000, 1 / 8
"""Characters of a reason, and the share of its beginning, which says who; a traceback ends with
what.
"""


def in_flight(job: Job) -> int | None:
    """The generation that is being brought up now."""
    held = locked(job)
    if held is not None or job.newest is None:
        return held
    newest = job.generations[job.newest]
    return (
        job.newest
        if newest.decision.tasks and not newest.abandoned and ahead(job, job.newest)
        else None
    )


def superseded(view: View, job: Job) -> list[GenerationAbandoned]:
    """What has to be said of generations that a newer one has overtaken."""
    held = locked(job)
    return [
        abandonment(view, job, number, f"superseded by generation {job.newest}")
        for number, generation in sorted(job.generations.items())
        if number not in (job.newest, held) and ahead(job, number)
        if generation.decision.tasks and not generation.abandoned
    ]


def abandonment(view: View, job: Job, number: int, reason: str) -> GenerationAbandoned:
    return GenerationAbandoned(
        namespace=job.namespace,
        job=job.job,
        uid=job.uid,
        generation=number,
        reason=cut_middle(reason, KEPT, HEAD),
        stood=job.generations[number].spec is not None,
        goes_on=goes_on(view, job),
    )


def goes_on(view: View, job: Job) -> int | None:
    """The generation that trains meanwhile; None where nothing does, or its chief ends: with the
    whole cluster, say.
    """
    runs = job.generations.get(-1 if job.running is None else job.running)
    pod = view.standing(job.uid).get(runs.chief) if runs and not paused(job) else None
    return job.running if pod and not _ends(job, pod) else None


def _ends(job: Job, pod: PodFact) -> bool:
    """It has, or was told to; a node may yet take its word back."""
    known = job.leaving.get(pod.uid)
    return (
        pod.over
        or pod.leaving
        or any(why not in OF_NODE for why in (known.notices if known else ()))
    )


def previous(job: Job) -> int | None:
    """The generation that a new one would take over from: the one that runs, unless it has drained
    and stopped.
    """
    return None if job.running == job.drained else job.running


def wanted(job: Job) -> dict[str, TaskPlan]:
    """The tasks whose pods must stay, by name: of the running generation and of every one that may
    yet come.
    """
    if paused(job):
        return {}
    live = (
        g
        for n, g in sorted(job.generations.items())
        if n == job.running or (ahead(job, n) and not g.abandoned)
    )
    return {name: task for generation in live for name, task in generation.tasks.items()}
