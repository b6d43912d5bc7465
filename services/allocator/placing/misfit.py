"""Tasks that are larger than every node.

Such a task waits for ever, however much comes free. The user has to be told so, with the amount
that it wants and the amount that there is. Without any node that takes tasks, size is not the cause
of the wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.placing.amounts import amounts, fits
from services.allocator.placing.placement import Room
from shared.messages import Resources, Role, RoleResources

NEVER = "no node is large enough"
"""Each such reason begins with this, and no other reason does."""


def misfit(room: Room, roles: Iterable[Role], sizes: RoleResources) -> str:
    """Return why no room that comes free will help; empty: a task of each of these roles fits some
    empty node.
    """
    reasons = []
    for role in dict.fromkeys(roles):
        wants = getattr(sizes, role)
        has = _nearest(wants, room.shapes)
        if has is None or fits(wants, has):
            continue
        sentence = f"it wants {told(wants)}, and the largest has {told(has)}"
        reasons.append(f"{NEVER} for a {role}: {sentence}")
    return "; ".join(reasons)


def told(amount: Resources) -> str:
    """Return an amount as text."""
    devices = f", {amount.gpu} gpu" if amount.gpu else ""
    return f"{amount.cpu:g} cpu, {amount.memory_gib:.4g} GiB{devices}"


def _nearest(wants: Resources, shapes: tuple[Resources, ...]) -> Resources | None:
    """Return the first shape that holds the task; else the one that lacks least."""
    for has in shapes:
        if fits(wants, has):
            return has
    return min(shapes, key=lambda has: _lack(wants, has), default=None)


def _lack(wants: Resources, has: Resources) -> float:
    """Return the missing shares of the wanted amounts, summed over cpu, memory and devices."""
    lack = 0.0
    for wanted, there in zip(amounts(wants), amounts(has), strict=True):
        if there < wanted:
            lack += 1 - there / wanted
    return lack
