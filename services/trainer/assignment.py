"""What a child of this pod is told at its birth: who it is in its generation, and how it is to
prepare.
"""

from __future__ import annotations

from services.trainer.orders import Assignment
from services.trainer.settings import Settings
from shared.messages import ClusterSpecPublished, Resources


def assignment(
    spec: ClusterSpecPublished,
    settings: Settings,
    program: str,
    *,
    fresh: bool,
    follows: bool,
    nice: int,
) -> Assignment:
    """`follows`: something of the job has run before. `nice`: niceness of who prepares beside what
    runs.

    Where nothing runs, or a fresh child starts because it has stopped, to warm up would only make
    the pause longer.
    """
    task = spec.of(settings.pod)
    assert task is not None, "only members start children"
    return Assignment(
        generation=spec.generation,
        role=task.role,
        index=task.index,
        cluster={role: spec.addresses(role) for role in ("chief", "ps", "worker")},
        request=spec.request,
        batch=spec.batch,
        program=program,
        checkpoint_dir=settings.checkpoint_dir,
        continue_from=settings.continue_from,
        resources=Resources(cpu=settings.cpu, memory_gib=settings.memory_gib),
        warms_up=spec.previous is not None and not fresh,
        off_s=spec.off_s,
        first=not follows,
        beside=spec.previous is not None,
        nice=nice if spec.previous is not None else 0,
        progress_s=settings.progress_s,
        stuck_early_s=settings.stuck_early_s,
        stuck_s=settings.stuck_s,
        stuck_patience=settings.stuck_patience,
        redo_s=settings.redo_s,
    )
