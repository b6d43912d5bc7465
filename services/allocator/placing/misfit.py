"""Is there a node at all for one task of each role?

A task larger than every node waits for ever, however much comes free: whoever asked for it has to
be told so, with what it wants and what there is. Without any node that takes tasks, size is not
what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.placing.amounts import fits
from services.allocator.placing.placement import Room
from shared.messages import Resources, Role, RoleResources

NEVER = "no node is large enough"
"""So each such reason begins, and no other."""


def misfit(room: Room, roles: Iterable[Role], sizes: RoleResources) -> str:
    """Return why no room that comes free will help; empty: a task of each of these roles fits some
    empty node.
    """
    reasons = []
    for role in dict.fromkeys(roles):
        wants = getattr(sizes, role)
        has = _nearest(wants, room.shapes)
        if has is not None and not fits(wants, has):
            reasons.append(
                f"{NEVER} for a {role}: it wants {told(wants)}, and the largest has {told(has)}"
            )
    return "; ".join(reasons)


def told(amount: Resources) -> str:
    devices = f", {amount.gpu} gpu" if amount.gpu else ""
    return f"{amount.cpu:g} cpu, {amount.memory_gib:.4g} GiB{devices}"


def _nearest(wants: Resources, shapes: tuple[Resources, ...]) -> Resources | None:
    """Return the first shape that holds it; else the one that lacks least."""
    for has in shapes:
        if fits(wants, has):
            return has
    return min(shapes, key=lambda has: _lack(wants, has), default=None)


def _lack(wants: Resources, has: Resources) -> float:
    """Return the missing shares of the wanted amounts, summed over cpu, memory and devices."""
    shares = 0.0
    for wanted, there in (
        (wants.cpu, has.cpu),
        (wants.memory_gib, has.memory_gib),
        (wants.gpu, has.gpu),
    ):
        if there < wanted:
            shares += 1 - there / wanted
    return shares
