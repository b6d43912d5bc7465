"""What is new between two boards, so that who watches is sent only that: pure.

By identity: a board's parts are frozen, and stay the very same ones as long as nothing happens to
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from services.console.board import series
from services.console.board.board import Board
from services.console.board.nodes import Node, Totals
from services.console.board.story import Decision, Story

T = TypeVar("T")


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """`gone_*`: names that are there no more. A list that is None was thinned: take the board's
    own, whole.
    """

    nodes: tuple[Node, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    jobs: tuple[Story, ...] = ()
    gone_jobs: tuple[str, ...] = ()
    cluster: tuple[Totals, ...] | None = ()
    decisions: tuple[Decision, ...] = ()


NONE = Changes()


def changes(before: Board, after: Board) -> Changes:
    if before is after:
        return NONE
    cluster = series.come(before.cluster, after.cluster)
    return Changes(
        nodes=_new(before.nodes, after.nodes),
        gone_nodes=_gone(before.nodes, after.nodes),
        jobs=_new(before.jobs, after.jobs),
        gone_jobs=_gone(before.jobs, after.jobs),
        cluster=None if cluster is None else tuple(cluster),
        decisions=_latest(before.decisions, after.decisions),
    )


def _new(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[T, ...]:
    return (
        ()
        if before is after
        else tuple(one for name, one in after.items() if before.get(name) is not one)
    )


def _gone(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[str, ...]:
    return () if before is after else tuple(name for name in before if name not in after)


def _latest(before: Sequence[T], after: Sequence[T]) -> tuple[T, ...]:
    """Those at the end that were not there; of a list that forgets its oldest."""
    known = set(map(id, before))
    return tuple(one for one in after if id(one) not in known)
