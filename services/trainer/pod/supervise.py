"""What a pod may do about a fact: values that `supervise` and `leaving` give back and `service`
carries out.

What a pod does about each fact: pure, facts in, actions out.

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

What a pod does that will have to go, or whose generation is about to lose another's task: pure.

    TaskLeaving of a ps or the chief   the chief saves at once and trains on, because a hand-over may come too late
    last_save_s before its deadline    the chief saves once more and applies nothing after that: nothing is done again
    every task was told to end         the same at once: there is nobody who could take over
    a pod that was told to end         works on for its generation, and goes when that needs it no more: when the next
                                       trains, when the last save is there, or leave_s before the
                                       deadline

The loss of a worker costs nothing that a checkpoint could save. A cordoned or tainted node may be
taken back, so it stops nobody: only what is certain does, an end that the pod was told or the time
at which Kubernetes kills it.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from shared.messages import (
    DELETED,
    EVICTED,
    SIGTERM,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    HandOverOrdered,
    TaskLeaving,
    TrainingResumed,
)


class StartChild(msgspec.Struct, frozen=True):
    """`fresh`: a new process, instead of a fork of the nursery."""

    spec: ClusterSpecPublished
    fresh: bool


class BeginChild(msgspec.Struct, frozen=True):
    """`path` None: what the ledger bucket names last, if anything."""

    generation: int
    path: str | None
    chief: bool


class DrainChild(msgspec.Struct, frozen=True):
    """`successor`: the generation for which it stops; None: for good, because tasks of it have to
    go.
    """

    generation: int
    successor: int | None


class SaveChild(msgspec.Struct, frozen=True):
    """Save now, and train on."""

    generation: int


class GoOnChild(msgspec.Struct, frozen=True):
    generation: int


class EndChild(msgspec.Struct, frozen=True):
    generation: int


class SayLastIsFinal(msgspec.Struct, frozen=True):
    """The child that should save is broken, or not there: its last checkpoint must do."""

    generation: int
    successor: int


class StayForNext(msgspec.Struct, frozen=True):
    """This pod can do nothing more for `generation`; it stays a while for the next, and then
    ends.
    """

    generation: int


class LeavePod(msgspec.Struct, frozen=True):
    """A generation trains without this pod's part in it: the pod ends, so that its task is
    replaced.
    """

    generation: int


class GoAway(msgspec.Struct, frozen=True):
    """This pod was told to end, and may."""


ForChild = StartChild | BeginChild | DrainChild | SaveChild | GoOnChild | EndChild
Action = ForChild | SayLastIsFinal | StayForNext | LeavePod | GoAway
Actions = tuple[Action, ...]

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


CERTAIN = (SIGTERM, EVICTED, DELETED)
WORKS = ("running", "draining")


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: how long before its deadline a pod goes, and how long before that the last save
    begins.
    """

    leave_s: float
    last_save_s: float


def on_leaving(pod: Pod, fact: TaskLeaving, now: float, times: Times) -> tuple[Pod, Actions]:
    """Remember it; and save, where that was the first that is known of a deadline."""
    known = pod.leaving.get(fact.pod, Notice())
    notice = _joined(known, fact)
    pod = replace(pod, leaving={**pod.leaving, fact.pod: notice})
    pod, actions = due(pod, now, times)
    generation, first = _led(pod), notice.leaves_s and not known.leaves_s
    if generation is None or not first or fact.pod not in _indispensable(pod.specs[generation]):
        return pod, actions
    if now < pod.saved_s + times.last_save_s:
        return pod, actions  # of several that leave together each has its notice
    return replace(pod, saved_s=now), (SaveChild(generation), *actions)


def due(pod: Pod, now: float, times: Times) -> tuple[Pod, Actions]:
    """What is to be done by now."""
    generation = _led(pod)
    actions: Actions = ()
    if generation is not None and now >= _stops_s(pod, generation, times):
        pod = replace(pod, children={**pod.children, generation: "draining"})
        actions = (DrainChild(generation, None),)
    return pod, (*actions, GoAway()) if _goes(pod, now, times) else actions


def next_s(pod: Pod, times: Times) -> float:
    """When time alone changes what is due; infinite: never."""
    generation, mine = _led(pod), pod.leaving.get(pod.name, Notice())
    ends_s = mine.leaves_s - times.leave_s if mine.told and mine.leaves_s else math.inf
    return ends_s if generation is None else min(ends_s, _stops_s(pod, generation, times))


def needed(pod: Pod) -> bool:
    """Whether a generation works with this pod in it."""
    return any(phase in WORKS for phase in pod.children.values())


def _joined(known: Notice, fact: TaskLeaving) -> Notice:
    said = [s for s in (known.leaves_s, fact.leaves_s) if s]
    certain = known.certain or fact.why in CERTAIN
    return Notice(min(said, default=0.0), certain, known.told or fact.why == SIGTERM)


def _led(pod: Pod) -> int | None:
    """The newest generation that trains under this pod, its chief."""
    return max(
        (g for g, phase in pod.children.items() if phase == "running" and pod.leads(g)),
        default=None,
    )


def _indispensable(spec: ClusterSpecPublished) -> list[str]:
    return [task.pod for task in spec.tasks if task.role in ("chief", "ps")]


def _stops_s(pod: Pod, generation: int, times: Times) -> float:
    """When the last save has to begin; infinite: nothing that is certain asks for one."""
    spec = pod.specs[generation]
    if _all_told(pod, spec):
        return -math.inf
    notices = [pod.leaving.get(name, Notice()) for name in _indispensable(spec)]
    ends = [notice.leaves_s for notice in notices if notice.certain and notice.leaves_s]
    return min(ends, default=math.inf) - times.leave_s - times.last_save_s


def _all_told(pod: Pod, spec: ClusterSpecPublished) -> bool:
    return all(pod.leaving.get(task.pod, Notice()).told for task in spec.tasks)


def _goes(pod: Pod, now: float, times: Times) -> bool:
    mine = pod.leaving.get(pod.name, Notice())
    if not mine.told:
        return False
    over = mine.leaves_s and now >= mine.leaves_s - times.leave_s
    return bool(over) or not needed(pod) or _stopped(pod)


def _stopped(pod: Pod) -> bool:
    """The newest generation that this pod works for has saved for nobody in particular: for
    good.
    """
    newest = max(g for g, phase in pod.children.items() if phase in WORKS)
    final = pod.finals.get(newest)
    return final is not None and final.successor is None
