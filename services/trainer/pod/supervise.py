"""Decide the actions of a pod for each fact. Facts in, actions out.

A hand-over from generation P to G, make before break:

    ClusterSpecPublished(G)   every pod of G starts a child for G beside that of P
    child Prepared            the pod publishes GenerationPrepared(G)
    HandOverOrdered(G, P)     the chief of P drains and saves; servers of G take their full CPU weight
    CheckpointSaved(P final)  the chief of G begins from it
    TrainingResumed(G)        every child older than G ends
    GenerationAbandoned(G)    the child of G ends; if P has drained already, it continues

If a child of G ends by itself before G trains, only G fails: its pod reports that it could not
prepare, and stays for P.

With `handover: restart` (stop everything, start again) the chief of P drains at once. Children of G
start as new processes, and only when that checkpoint is saved. A pod does not need the facts that
it missed while it was down: the newest of each kind is enough.

A pod that has to leave (its node goes away, or Kubernetes ends it), or whose generation is about to
lose another task:

    TaskLeaving of a ps or the chief   the chief saves at once and trains on: a hand-over may come too late
    last_save_s before its deadline    the chief saves once more and applies nothing after that, so nothing is repeated
    every task was told to end         the same at once: no pod is left to take over
    a pod that was told to end         works until its generation no longer needs it: until the next one trains,
                                       the last save is committed, or leave_s before the deadline

A checkpoint does not help against the loss of a worker. A cordon or taint may be taken back, so it
stops nothing: only a certain end does, which is a signal to the pod or the time at which Kubernetes
kills it.
"""

from __future__ import annotations

import math
from typing import Literal, TypeVar

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

T = TypeVar("T")
Phase = Literal["preparing", "prepared", "running", "draining", "broken"]
ChildExit = Literal[
    "ignored",
    "fails the job",
    "prepares again",
    "is missed by its generation",
    "breaks",
    "ends the pod",
]
CERTAIN_REASONS = (SIGTERM, EVICTED, DELETED)
WORKING_PHASES = ("running", "draining")


class StartChild(msgspec.Struct, frozen=True):
    """`fresh`: start a new process in place of a fork."""

    spec: ClusterSpecPublished
    fresh: bool


class BeginChild(msgspec.Struct, frozen=True):
    """`path` None: restore the checkpoint that the ledger names last, if there is one."""

    generation: int
    path: str | None
    chief: bool


class ReadAheadChild(msgspec.Struct, frozen=True):
    """Let a chief that does not train yet read the tables of this checkpoint. `path` empty: there
    is no further one.
    """

    generation: int
    path: str


class DrainChild(msgspec.Struct, frozen=True):
    """`successor`: the generation that takes over; None: none, because tasks of this one have to
    leave.
    """

    generation: int
    successor: int | None


class SaveChild(msgspec.Struct, frozen=True):
    """Save now and continue to train."""

    generation: int


class GoOnChild(msgspec.Struct, frozen=True):
    generation: int


class EndChild(msgspec.Struct, frozen=True):
    generation: int


class SayLastIsFinal(msgspec.Struct, frozen=True):
    """Publish the last checkpoint as the final one: the child that should save is broken or
    missing.
    """

    generation: int
    successor: int


class StayForNext(msgspec.Struct, frozen=True):
    """Keep a pod that can do nothing more for `generation` until the next one; end it if none
    comes.
    """

    generation: int


class LeavePod(msgspec.Struct, frozen=True):
    """End this pod, so that its task is replaced: a generation trains without its part in it."""

    generation: int


class GoAway(msgspec.Struct, frozen=True):
    """End this pod: it was told to end, and its generation does not need it."""


ForChild = StartChild | ReadAheadChild | BeginChild | DrainChild | SaveChild | GoOnChild | EndChild
Action = ForChild | SayLastIsFinal | StayForNext | LeavePod | GoAway
Actions = tuple[Action, ...]


class Notice(msgspec.Struct, frozen=True):
    """The known end of a task. `leaves_s`: its deadline (0: unknown). `certain`: it cannot be taken
    back. `terminating`: the task itself was told to end.
    """

    leaves_s: float = 0.0
    certain: bool = False
    terminating: bool = False


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pod. `children`: alive or broken. `restarts`: generations to start again, with
    their checkpoint path.

    `newest`, `trains`, `abandoned`: the newest generation that is wanted, that has resumed, that
    was abandoned. `leaving`: the tasks that have to leave, by pod. `saved_s`: when the chief last
    had to save for one of them.
    """

    name: str
    newest: int = -1
    trains: int = -1
    abandoned: int = -1
    specs: dict[int, ClusterSpecPublished] = {}
    children: dict[int, Phase] = {}
    finals: dict[int, CheckpointSaved] = {}
    ordered: dict[int, int | None] = {}
    restarts: dict[int, str] = {}
    leaving: dict[str, Notice] = {}
    saved_s: float = 0.0

    def is_chief(self, generation: int | None) -> bool:
        """Return whether this pod is the chief of a generation that it knows."""
        spec = self.specs.get(-1 if generation is None else generation)
        task = spec.of(self.name) if spec else None
        return task is not None and task.role == "chief"

    def is_member(self, generation: int) -> bool:
        spec = self.specs.get(generation)
        return spec is not None and spec.of(self.name) is not None

    def final_for(self, generation: int, previous: int | None) -> CheckpointSaved | None:
        """Return the final checkpoint of `previous` for this generation or for no successor.

        A checkpoint for another generation is stale: that one was abandoned, and `previous`
        continued.
        """
        final = self.finals.get(-1 if previous is None else previous)
        return final if final is not None and final.successor in (None, generation) else None

    def is_dispensable(self, generation: int) -> bool:
        """Return whether the job can lose a generation that does not train yet, because the one
        before it continues.
        """
        spec = self.specs.get(generation)
        if spec is None or spec.previous is None or generation <= self.trains:
            return False
        return generation not in self.ordered or self.ordered[generation] is not None


def on_spec(pod: Pod, spec: ClusterSpecPublished) -> tuple[Pod, Actions]:
    """Start a child for a newer generation, or drain the running one first."""
    if spec.generation <= pod.newest:
        return pod, ()
    superseded = [g for g in pod.children if _is_superseded(pod, g, spec)]
    pod, ended = _end_children(pod, superseded)
    specs = {**pod.specs, spec.generation: spec}
    pod = replace(pod, newest=spec.generation, specs=specs)
    if _waits_for_final(pod, spec):
        pod, actions = _drain_child(pod, spec.previous)
    else:
        pod, actions = _start_child(pod, spec)
    return pod, ended + actions


def _is_superseded(pod: Pod, generation: int, spec: ClusterSpecPublished) -> bool:
    """Return whether a child ends at once: it never began, or is older than the running one.

    The `TrainingResumed` of the running one may arrive later than this spec. A broken generation
    stays: its chief may still write, and would take ending servers for a fault of the program.
    """
    over = (
        spec.request.handover == "restart" if spec.previous is None else generation < spec.previous
    )
    return over or pod.children[generation] in ("preparing", "prepared")


def _waits_for_final(pod: Pod, spec: ClusterSpecPublished) -> bool:
    if spec.request.handover != "restart" or spec.previous is None:
        return False
    return pod.final_for(spec.generation, spec.previous) is None


def _start_child(pod: Pod, spec: ClusterSpecPublished) -> tuple[Pod, Actions]:
    if spec.of(pod.name) is None or spec.generation in pod.children:
        return pod, ()
    started = _with_phase(pod, spec.generation, "preparing")
    return started, (StartChild(spec, fresh=spec.request.handover == "restart"),)


def _drain_child(pod: Pod, generation: int | None) -> tuple[Pod, Actions]:
    """Let a generation stop and save for the newest one, if this pod is its chief.

    A broken generation cannot save. One that was stopped for another and is only starting again has
    nothing to add.
    """
    phase = pod.children.get(-1 if generation is None else generation)
    if generation is None or not pod.is_chief(generation) or phase == "draining":
        return pod, ()
    if phase != "running":
        return pod, (SayLastIsFinal(generation, pod.newest),)
    return _with_phase(pod, generation, "draining"), (DrainChild(generation, pod.newest),)


def on_prepared(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    """Begin a prepared child at once if it only restarts; otherwise wait for the hand-over
    order.
    """
    if pod.children.get(generation) != "preparing":
        return pod, ()  # given up meanwhile
    pod = _with_phase(pod, generation, "prepared")
    if generation in pod.restarts and pod.is_chief(generation):
        return _begin_child(pod, generation, pod.restarts[generation])
    return _begin_if_due(pod, generation)


def on_hand_over(pod: Pod, order: HandOverOrdered) -> tuple[Pod, Actions]:
    """Drain the previous generation, and begin the next when its checkpoint is committed."""
    if order.generation != pod.newest:
        return pod, ()
    pod = replace(pod, ordered={**pod.ordered, order.generation: order.previous})
    saved = pod.final_for(order.generation, order.previous) is not None
    pod, drained = (pod, ()) if saved else _drain_child(pod, order.previous)
    pod, begun = _begin_if_due(pod, order.generation)
    return pod, drained + begun


def on_final(pod: Pod, saved: CheckpointSaved) -> tuple[Pod, Actions]:
    """Begin the next generation after the final checkpoint of the previous one (start it, after a
    restart).

    A checkpoint for an abandoned generation is not final: the generation that saved it continues.
    """
    if (
        saved.successor is not None
        and saved.successor <= pod.abandoned
        and saved.successor not in pod.ordered
    ):
        return pod, ()
    pod = replace(pod, finals={**pod.finals, saved.generation: saved})
    spec = pod.specs.get(pod.newest)
    if (
        spec is None
        or spec.previous != saved.generation
        or pod.final_for(pod.newest, spec.previous) is None
    ):
        return pod, ()
    if spec.request.handover == "restart" and pod.newest not in pod.children:
        pod, ended = _end_older_children(pod, pod.newest)
        pod, started = _start_child(pod, spec)
        return pod, ended + started
    return _begin_if_due(pod, pod.newest)


def on_saved(pod: Pod, saved: CheckpointSaved) -> tuple[Pod, Actions]:
    """Drop the final checkpoint of a generation that has saved a newer one: it continued after it.
    Let the next generation read ahead.
    """
    final = pod.finals.get(saved.generation)
    if final is not None and saved.step > final.step:
        pod = replace(pod, finals=_without(pod.finals, saved.generation))
    if pod.children.get(pod.newest) in ("preparing", "prepared") and pod.is_chief(pod.newest):
        return pod, (ReadAheadChild(pod.newest, saved.path),)
    return pod, ()


def on_catch_up(pod: Pod, generation: int) -> Actions:
    """Let the running generation save for a chief that reads ahead, if this pod leads both."""
    spec = pod.specs.get(generation)
    previous = spec.previous if spec is not None else None
    if previous is None or pod.children.get(previous) != "running" or not pod.is_chief(previous):
        return (ReadAheadChild(generation, ""),)
    return (SaveChild(previous),)


def end_read_ahead(pod: Pod) -> Actions:
    """Tell a chief that reads ahead that nothing is saved for it now."""
    if pod.children.get(pod.newest) == "preparing" and pod.is_chief(pod.newest):
        return (ReadAheadChild(pod.newest, ""),)
    return ()


def on_unsaved(pod: Pod, generation: int, final: bool) -> Pod:
    """Return a draining generation to running if it could not save. Nothing else changes."""
    drained = final and pod.children.get(generation) == "draining"
    return _with_phase(pod, generation, "running") if drained else pod


def _begin_if_due(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    """Begin a prepared child once it is ordered and the checkpoint of the previous generation
    exists.
    """
    if generation not in pod.ordered or pod.children.get(generation) != "prepared":
        return pod, ()
    previous = pod.ordered[generation]
    if not pod.is_chief(generation):
        return _begin_child(pod, generation, None)
    if previous is None:
        return _begin_child(pod, generation, None)
    final = pod.final_for(generation, previous)
    return (pod, ()) if final is None else _begin_child(pod, generation, final.path or None)


def _begin_child(pod: Pod, generation: int, path: str | None) -> tuple[Pod, Actions]:
    return _with_phase(pod, generation, "running"), (
        BeginChild(generation, path, chief=pod.is_chief(generation)),
    )


def on_resumed(pod: Pod, fact: TrainingResumed) -> tuple[Pod, Actions]:
    """End everything older than the generation that trains. A pod without a child of it leaves."""
    pod, ended = _end_older_children(pod, fact.generation)
    pod = replace(pod, restarts={}, trains=max(pod.trains, fact.generation))
    missed = (
        fact.generation == pod.newest
        and pod.is_member(fact.generation)
        and fact.generation not in pod.children
    )
    return pod, (*ended, LeavePod(fact.generation)) if missed else ended


def on_abandoned(pod: Pod, fact: GenerationAbandoned) -> tuple[Pod, Actions]:
    """End the child of an abandoned generation; the previous one continues or starts again.

    A generation that has resumed meanwhile stays: the launcher also takes it for the running one.
    """
    if fact.generation <= pod.trains:
        return pod, ()
    pod = replace(
        pod,
        abandoned=max(pod.abandoned, fact.generation),
        ordered=_without(pod.ordered, fact.generation),
    )
    spec = pod.specs.get(fact.generation)
    abandoned = [fact.generation] if fact.generation in pod.children else []
    pod, ended = _end_children(pod, abandoned)
    if spec is None or spec.previous is None or spec.previous < pod.trains:
        return pod, ended
    pod, resumed = _resume_previous(pod, spec.previous)
    return pod, ended + resumed


def _resume_previous(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    """Let the previous generation continue. Its final checkpoint is no longer final."""
    final, phase = pod.finals.get(generation), pod.children.get(generation)
    pod = replace(pod, finals=_without(pod.finals, generation))
    if phase == "draining":
        return _with_phase(pod, generation, "running"), (GoOnChild(generation),)
    if phase == "broken":
        return pod, (StayForNext(generation),)
    if final is None or phase is not None or not pod.is_member(generation):
        return pod, ()
    restarts = {**pod.restarts, generation: final.path}
    return _start_child(replace(pod, restarts=restarts), pod.specs[generation])


def on_child_end(
    pod: Pod, generation: int, *, peer: bool, explained: bool, too_small: bool = False
) -> ChildExit:
    """Return the meaning of a child's own exit. `peer`: another task is the cause; `explained`: the
    child has given its cause; `too_small`: the ps of this generation cannot hold the model. Then
    only the generation is given up, and one that runs continues.
    """
    phase = pod.children.get(generation)
    if phase is None:
        return "ignored"
    spared = pod.is_dispensable(generation)
    if too_small and phase == "preparing":
        return "is missed by its generation"
    if not peer and not spared:
        return "fails the job"
    if peer and phase == "preparing":
        return "prepares again"
    if spared or phase == "prepared":
        return "is missed by its generation"
    return "breaks" if explained and pod.is_chief(generation) else "ends the pod"


def on_child_gone(pod: Pod, generation: int, broken: bool) -> Pod:
    """Remove a child that ended by itself. `broken`: it lost another task, and the pod stays for
    the next generation.
    """
    if broken:
        return _with_phase(pod, generation, "broken")
    return replace(pod, children=_without(pod.children, generation))


def _with_phase(pod: Pod, generation: int, phase: Phase) -> Pod:
    return replace(pod, children={**pod.children, generation: phase})


def _end_children(pod: Pod, generations: list[int]) -> tuple[Pod, Actions]:
    children = _without(pod.children, *generations)
    return replace(pod, children=children), tuple(map(EndChild, generations))


def _end_older_children(pod: Pod, generation: int) -> tuple[Pod, Actions]:
    return _end_children(pod, [older for older in pod.children if older < generation])


def _without(by_generation: dict[int, T], *generations: int) -> dict[int, T]:
    """Return a copy without these generations."""
    rest = dict(by_generation)
    for generation in generations:
        rest.pop(generation, None)
    return rest


class ShutdownTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: `leave_s` from a pod's exit to its deadline, `last_save_s` from the last save to
    that exit.
    """

    leave_s: float
    last_save_s: float


def on_leaving(
    pod: Pod, fact: TaskLeaving, now: float, times: ShutdownTimes
) -> tuple[Pod, Actions]:
    """Remember that a task has to leave. Save if this is the first news of a deadline."""
    known = pod.leaving.get(fact.pod, Notice())
    notice = _merge_notice(known, fact)
    pod = replace(pod, leaving={**pod.leaving, fact.pod: notice})
    pod, actions = due_actions(pod, now, times)
    generation, first = _led_generation(pod), notice.leaves_s and not known.leaves_s
    if (
        generation is None
        or not first
        or fact.pod not in _indispensable_pods(pod.specs[generation])
    ):
        return pod, actions
    if now < pod.saved_s + times.last_save_s:
        return pod, actions  # several tasks leave together
    return replace(pod, saved_s=now), (SaveChild(generation), *actions)


def due_actions(pod: Pod, now: float, times: ShutdownTimes) -> tuple[Pod, Actions]:
    """Return the actions that are due by now."""
    generation = _led_generation(pod)
    actions: Actions = ()
    if generation is not None and now >= _last_save_due_s(pod, generation, times):
        pod = replace(pod, children={**pod.children, generation: "draining"})
        actions = (DrainChild(generation, None),)
    return pod, (*actions, GoAway()) if _may_go(pod, now, times) else actions


def next_due_s(pod: Pod, times: ShutdownTimes) -> float:
    """Return when time alone makes an action due; infinite: never."""
    generation, mine = _led_generation(pod), pod.leaving.get(pod.name, Notice())
    ends_s = mine.leaves_s - times.leave_s if mine.terminating and mine.leaves_s else math.inf
    return ends_s if generation is None else min(ends_s, _last_save_due_s(pod, generation, times))


def is_needed(pod: Pod) -> bool:
    """Return whether a generation trains or drains with this pod in it."""
    return any(phase in WORKING_PHASES for phase in pod.children.values())


def _merge_notice(known: Notice, fact: TaskLeaving) -> Notice:
    leaves_s = known.leaves_s or fact.leaves_s
    if known.leaves_s and fact.leaves_s:
        leaves_s = min(known.leaves_s, fact.leaves_s)
    certain = known.certain or fact.why in CERTAIN_REASONS
    return Notice(leaves_s, certain, known.terminating or fact.why == SIGTERM)


def _led_generation(pod: Pod) -> int | None:
    """Return the newest generation that trains with this pod as its chief."""
    running = [g for g, phase in pod.children.items() if phase == "running"]
    return max(filter(pod.is_chief, running), default=None)


def _indispensable_pods(spec: ClusterSpecPublished) -> list[str]:
    return [task.pod for task in spec.tasks if task.role in ("chief", "ps")]


def _last_save_due_s(pod: Pod, generation: int, times: ShutdownTimes) -> float:
    """Return when the last save has to begin; infinite: no certain end requires one."""
    spec = pod.specs[generation]
    if _all_terminating(pod, spec):
        return -math.inf
    ends_s = math.inf
    for name in _indispensable_pods(spec):
        notice = pod.leaving.get(name, Notice())
        if notice.certain and notice.leaves_s:
            ends_s = min(ends_s, notice.leaves_s)
    return ends_s - times.leave_s - times.last_save_s


def _all_terminating(pod: Pod, spec: ClusterSpecPublished) -> bool:
    return all(pod.leaving.get(task.pod, Notice()).terminating for task in spec.tasks)


def _may_go(pod: Pod, now: float, times: ShutdownTimes) -> bool:
    mine = pod.leaving.get(pod.name, Notice())
    if not mine.terminating:
        return False
    over = mine.leaves_s and now >= mine.leaves_s - times.leave_s
    return bool(over) or not is_needed(pod) or _has_stopped(pod)


def _has_stopped(pod: Pod) -> bool:
    """Return whether the newest generation of this pod has saved for good, without a successor."""
    newest = max(g for g, phase in pod.children.items() if phase in WORKING_PHASES)
    final = pod.finals.get(newest)
    return final is not None and final.successor is None
