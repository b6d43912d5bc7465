"""What a job that starts waits for, as its pods and its first generation tell of themselves: pure.

    AllocationDecided      these pods are to be              TaskStarted, TaskReady   one runs, one stands ready
    ClusterSpecPublished   the chief builds and traces       GenerationPrepared       one task is prepared
    HandOverOrdered        the generation is to begin        TrainingResumed          it has made its first update

Facts and orders come in separate streams: a pod may be heard of before it is heard that it is to
be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.job_views import JobView
from shared.messages import (
    AllocationDecided,
    ClusterSpecPublished,
    GenerationPrepared,
    HandOverOrdered,
    Message,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from shared.text import format_count

Names = frozenset[str]


class Beginning(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Names of pods; `chief` is among `wanted`. `prepared`, `published` and `ordered` are of the
    newest generation that said so.
    """

    generation: int = 0
    wanted: Names = frozenset()
    chief: str = ""
    running: Names = frozenset()
    ready: Names = frozenset()
    published: int = 0
    prepared: tuple[int, Names] = (0, frozenset())
    ordered: int = 0


def heard(known: Beginning, said: Message) -> Beginning:
    """After one more message of the job."""
    return OF_BEGINNING[type(said)](known, said) if type(said) in OF_BEGINNING else known


def _decided(known: Beginning, said: AllocationDecided) -> Beginning:
    if said.generation < known.generation:
        return known
    pods = {task.pod(said.job): task.role for task in said.tasks}
    chief = next((pod for pod, role in pods.items() if role == "chief"), "")
    return replace(known, generation=said.generation, wanted=frozenset(pods), chief=chief)


def _started(known: Beginning, said: TaskStarted) -> Beginning:
    return replace(known, running=known.running | {said.pod})


def _ready(known: Beginning, said: TaskReady) -> Beginning:
    return replace(known, running=known.running | {said.pod}, ready=known.ready | {said.pod})


def _exited(known: Beginning, said: TaskExited) -> Beginning:
    return replace(known, running=known.running - {said.pod}, ready=known.ready - {said.pod})


def _published(known: Beginning, said: ClusterSpecPublished) -> Beginning:
    return replace(known, published=max(known.published, said.generation))


def _prepared(known: Beginning, said: GenerationPrepared) -> Beginning:
    newest, pods = known.prepared
    if said.error is not None or said.generation < newest:
        return known
    return replace(
        known,
        prepared=(said.generation, {*pods, said.pod} if said.generation == newest else {said.pod}),
    )


def _ordered(known: Beginning, said: HandOverOrdered) -> Beginning:
    return replace(known, ordered=max(known.ordered, said.generation))


OF_BEGINNING: dict[type[Message], Callable[[Beginning, Any], Beginning]] = {
    AllocationDecided: _decided,
    TaskStarted: _started,
    TaskReady: _ready,
    TaskExited: _exited,
    ClusterSpecPublished: _published,
    GenerationPrepared: _prepared,
    HandOverOrdered: _ordered,
}


# ---------------------------------------------------------------- in words


def shown(view: JobView, known: Beginning | None) -> JobView:
    """While it starts, what it waits for is why it has nothing yet; None: its first messages are
    not known.
    """
    return (
        replace(view, why=awaited(known))
        if view.phase == "Starting" and known and known.wanted
        else view
    )


def awaited(known: Beginning) -> str:
    """The first of these steps that is not done."""
    number, pods = len(known.wanted), format_count(len(known.wanted), "pod")
    if known.wanted - known.ready:
        running, ready = (len(known.wanted & there) for there in (known.running, known.ready))
        return f"waits for {pods}: {running} of {number} run, {ready} ready"
    if known.published < known.generation:
        return f"all {pods} are ready; waits for its cluster spec"
    if known.ordered >= known.generation:
        return "all is prepared; waits for its first update"
    newest, prepared = known.prepared
    done = known.wanted & prepared if newest == known.generation else frozenset()
    if known.chief in done:
        return f"waits for tasks: {len(done)} of {number} prepared"
    return f"all {pods} are ready; the chief connects, builds the model and traces a step"
