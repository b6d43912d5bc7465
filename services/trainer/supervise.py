"""What a pod does about each fact: pure, facts in, actions out.

The story of one hand-over from generation P to G, make before break:

    ClusterSpecPublished(G)   every pod of G starts a child for G beside that of P
    child Prepared            the pod says GenerationPrepared(G)
    HandOverOrdered(G, P)     the chief of P drains and saves; servers of G take their full CPU weight
    CheckpointSaved(P final)  the chief of G begins from it
    TrainingResumed(G)        every child older than G ends
    GenerationAbandoned(G)    the child of G ends; if P has drained already, it goes on as if nothing had been asked

A child of G that ends by itself before G trains costs G alone: its pod says that it could not
prepare, and stays for P.

With `handover: restart` (stop everything, start again) the chief of P drains at once, and children
of G start, freshly, only when that checkpoint is saved. What a pod missed while it was dead it does
not need: the newest of each counts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from services.trainer.actions import (
    Actions,
    BeginChild,
    DrainChild,
    EndChild,
    GoOnChild,
    LeavePod,
    SayLastIsFinal,
    StartChild,
    StayForNext,
)
from shared.messages import (
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    HandOverOrdered,
    TrainingResumed,
)

Phase = Literal["preparing", "prepared", "running", "draining", "broken"]


Ending = Literal[
    "ignored",
    "fails the job",
    "prepares again",
    "is missed by its generation",
    "breaks",
    "ends the pod",
]


class Notice(msgspec.Struct, frozen=True):
    """Of a task that will have to go: killed by then (0: nobody says when), for certain, and told
    so itself.
    """

    leaves_s: float = 0.0
    certain: bool = False
    told: bool = False


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod knows. `children` are alive or broken; `again` are generations to be restarted,
    with their path.

    `newest`, `trains` and `given_up`: the newest generation that is wanted, that has resumed, that
    was abandoned; `leaving`: who has to go, by pod; `saved_s`: when the chief was last told to save
    for one.
    """

    name: str
    newest: int = -1
    trains: int = -1
    given_up: int = -1
    specs: dict[int, ClusterSpecPublished] = {}
    children: dict[int, Phase] = {}
    finals: dict[int, CheckpointSaved] = {}
    ordered: dict[int, int | None] = {}
    again: dict[int, str] = {}
    leaving: dict[str, Notice] = {}
    saved_s: float = 0.0

    def leads(self, generation: int | None) -> bool:
        """Whether this pod is the chief of a generation that it knows."""
        spec = self.specs.get(-1 if generation is None else generation)
        task = spec.of(self.name) if spec else None
        return task is not None and task.role == "chief"

    def belongs(self, generation: int) -> bool:
        spec = self.specs.get(generation)
        return spec is not None and spec.of(self.name) is not None

    def final_for(self, generation: int, previous: int | None) -> CheckpointSaved | None:
        """The checkpoint with which `previous` made way for this generation: saved for it, or for
        good. One that was saved for another is stale: that one was abandoned, and `previous` went
        on.
        """
        final = self.finals.get(-1 if previous is None else previous)
        return final if final is not None and final.successor in (None, generation) else None

    def spares(self, generation: int) -> bool:
        """Whether the job can do without a generation that does not train yet, because the one
        before goes on.
        """
        spec = self.specs.get(generation)
        if spec is None or spec.previous is None or generation <= self.trains:
            return False
        return generation not in self.ordered or self.ordered[generation] is not None


def on_spec(pod: Pod, spec: ClusterSpecPublished) -> tuple[Pod, Actions]:
    """A newer generation is wanted: start for it, or first free the place."""
    if spec.generation <= pod.newest:
        return pod, ()
    pod, ended = _end(pod, [g for g in pod.children if _makes_way(pod, g, spec)])
    pod = msgspec.structs.replace(
        pod, newest=spec.generation, specs={**pod.specs, spec.generation: spec}
    )
    if _waits_for_final(pod, spec):
        pod, actions = _drain(pod, spec.previous)
    else:
        pod, actions = _start(pod, spec)
    return pod, ended + actions


def _makes_way(pod: Pod, generation: int, spec: ClusterSpecPublished) -> bool:
    """What never began, and what is older than the one that runs (its `TrainingResumed` may come
    later than this).

    Of one that cannot go on the chief may be writing yet, and would take servers that end for a
    fault of the program's.
    """
    over = (
        spec.request.handover == "restart" if spec.previous is None else generation < spec.previous
    )
    return over or pod.children[generation] in ("preparing", "prepared")


def _waits_for_final(pod: Pod, spec: ClusterSpecPublished) -> bool:
    if spec.request.handover != "restart" or spec.previous is None:
        return False
    return pod.final_for(spec.generation, spec.previous) is None


def _start(pod: Pod, spec: ClusterSpecPublished) -> tuple[Pod, Actions]:
    if spec.of(pod.name) is None or spec.generation in pod.children:
        return pod, ()
    started = _with(pod, spec.generation, "preparing")
    return started, (StartChild(spec, fresh=spec.request.handover == "restart"),)


def _drain(pod: Pod, generation: int | None) -> tuple[Pod, Actions]:
    """Make a generation stop and save for the newest, if that is this pod's to do.

    One that is broken cannot, and one that was stopped for another, and is only starting again, has
    nothing to add.
    """
    phase = pod.children.get(-1 if generation is None else generation)
    if generation is None or not pod.leads(generation) or phase == "draining":
        return pod, ()
    if phase != "running":
        return pod, (SayLastIsFinal(generation, pod.newest),)
    return _with(pod, generation, "draining"), (DrainChild(generation, pod.newest),)


def on_prepared(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    """A child stands ready. One that is only restarted begins at once; others wait for the
    order.
    """
    if pod.children.get(generation) != "preparing":
        return pod, ()  # it was given up meanwhile
    pod = _with(pod, generation, "prepared")
    if generation in pod.again and pod.leads(generation):
        return _begin(pod, generation, pod.again[generation])
    return _begin_if_due(pod, generation)


def on_hand_over(pod: Pod, order: HandOverOrdered) -> tuple[Pod, Actions]:
    """All are prepared: drain the one before, begin the next when its checkpoint is there."""
    if order.generation != pod.newest:
        return pod, ()
    pod = msgspec.structs.replace(pod, ordered={**pod.ordered, order.generation: order.previous})
    saved = pod.final_for(order.generation, order.previous) is not None
    pod, drained = (pod, ()) if saved else _drain(pod, order.previous)
    pod, begun = _begin_if_due(pod, order.generation)
    return pod, drained + begun


def on_final(pod: Pod, saved: CheckpointSaved) -> tuple[Pod, Actions]:
    """A generation has drained and saved: the next may begin (or, after a restart, be started).

    Unless the one it saved for was given up meanwhile: it goes on, and what it has saved is no last
    word.
    """
    if (
        saved.successor is not None
        and saved.successor <= pod.given_up
        and saved.successor not in pod.ordered
    ):
        return pod, ()
    pod = msgspec.structs.replace(pod, finals={**pod.finals, saved.generation: saved})
    spec = pod.specs.get(pod.newest)
    if (
        spec is None
        or spec.previous != saved.generation
        or pod.final_for(pod.newest, spec.previous) is None
    ):
        return pod, ()
    if spec.request.handover == "restart" and pod.newest not in pod.children:
        pod, ended = _end(pod, [g for g in pod.children if g < pod.newest])
        pod, started = _start(pod, spec)
        return pod, ended + started
    return _begin_if_due(pod, pod.newest)


def on_saved_again(pod: Pod, saved: CheckpointSaved) -> Pod:
    """A generation saved and trains on. Drop its final checkpoint if that is an older one: it went
    on after it.
    """
    final = pod.finals.get(saved.generation)
    if final is None or saved.step <= final.step:
        return pod
    return msgspec.structs.replace(
        pod, finals={g: f for g, f in pod.finals.items() if g != saved.generation}
    )


def on_unsaved(pod: Pod, generation: int, final: bool) -> Pod:
    """One that was to save for another, or for good, could not, and trains on. (Otherwise that
    changes nothing.)
    """
    drained = final and pod.children.get(generation) == "draining"
    return _with(pod, generation, "running") if drained else pod


def _begin_if_due(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    """Begin a prepared child once it is ordered and, where another ran before, that one's
    checkpoint is there.
    """
    if generation not in pod.ordered or pod.children.get(generation) != "prepared":
        return pod, ()
    previous = pod.ordered[generation]
    if not pod.leads(generation):
        return _begin(pod, generation, None)
    if previous is None:
        return _begin(pod, generation, None)
    final = pod.final_for(generation, previous)
    return (pod, ()) if final is None else _begin(pod, generation, final.path or None)


def _begin(pod: Pod, generation: int, path: str | None) -> tuple[Pod, Actions]:
    return _with(pod, generation, "running"), (
        BeginChild(generation, path, chief=pod.leads(generation)),
    )


def on_resumed(pod: Pod, fact: TrainingResumed) -> tuple[Pod, Actions]:
    """A generation trains: everything older ends, and so does a pod whose child of it has gone."""
    pod, ended = _end(pod, [g for g in pod.children if g < fact.generation])
    pod = msgspec.structs.replace(pod, again={}, trains=max(pod.trains, fact.generation))
    missed = (
        fact.generation == pod.newest
        and pod.belongs(fact.generation)
        and fact.generation not in pod.children
    )
    return pod, (*ended, LeavePod(fact.generation)) if missed else ended


def on_abandoned(pod: Pod, fact: GenerationAbandoned) -> tuple[Pod, Actions]:
    """A generation will not be: the one before goes on, or, where it was stopped for it, starts
    again.

    One that has resumed all the same stays: the launcher takes it for the running one, too.
    """
    if fact.generation <= pod.trains:
        return pod, ()
    pod = msgspec.structs.replace(
        pod,
        given_up=max(pod.given_up, fact.generation),
        ordered={g: previous for g, previous in pod.ordered.items() if g != fact.generation},
    )
    spec = pod.specs.get(fact.generation)
    pod, ended = _end(pod, [g for g in pod.children if g == fact.generation])
    if spec is None or spec.previous is None or spec.previous < pod.trains:
        return pod, ended
    pod, resumed = _revive(pod, spec.previous)
    return pod, ended + resumed


def _revive(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    """Let a generation go on; what it has saved for the one that was given up is no last word any
    more.
    """
    final, phase = pod.finals.get(generation), pod.children.get(generation)
    pod = msgspec.structs.replace(
        pod, finals={g: f for g, f in pod.finals.items() if g != generation}
    )
    if phase == "draining":
        return _with(pod, generation, "running"), (GoOnChild(generation),)
    if phase == "broken":
        return pod, (StayForNext(generation),)
    if final is None or phase is not None or not pod.belongs(generation):
        return pod, ()
    again = {**pod.again, generation: final.path}
    return _start(msgspec.structs.replace(pod, again=again), pod.specs[generation])


def on_child_end(pod: Pod, generation: int, *, peer: bool, explained: bool) -> Ending:
    """What it means that a child ended by itself. `peer`: another task is to blame; `explained`: it
    has said why.
    """
    phase = pod.children.get(generation)
    if phase is None:
        return "ignored"
    spared = pod.spares(generation)
    if not peer and not spared:
        return "fails the job"
    if peer and phase == "preparing":
        return "prepares again"
    if spared or phase == "prepared":
        return "is missed by its generation"
    return "breaks" if explained and pod.leads(generation) else "ends the pod"


def on_child_gone(pod: Pod, generation: int, broken: bool) -> Pod:
    """A child ended by itself. `broken`: it lost another task, and this pod stays to take part in
    what comes next.
    """
    if broken:
        return _with(pod, generation, "broken")
    return msgspec.structs.replace(
        pod, children={g: p for g, p in pod.children.items() if g != generation}
    )


def _with(pod: Pod, generation: int, phase: Phase) -> Pod:
    return msgspec.structs.replace(pod, children={**pod.children, generation: phase})


def _end(pod: Pod, generations: list[int]) -> tuple[Pod, Actions]:
    children = {g: p for g, p in pod.children.items() if g not in generations}
    return msgspec.structs.replace(pod, children=children), tuple(EndChild(g) for g in generations)
