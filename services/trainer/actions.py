"""What a pod may do about a fact: values that `supervise` and `leaving` give back and `service`
carries out.
"""

from __future__ import annotations

import msgspec

from shared.messages import ClusterSpecPublished


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
