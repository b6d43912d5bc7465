"""Is there a node at all for one task of each role?

A task larger than every node waits for ever, however much comes free: whoever asked for it has to be told so, with what
it wants and what there is. Without any node that takes tasks, size is not what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from services.allocator.placing.amounts import fits
from services.allocator.placing.placement import Room
from shared.messages import Resources, Role, RoleResources

NEVER = "no node is large enough"
"""So each such reason begins, and no other."""
LAST = 256
"""So many of the last answers are remembered."""


def misfit(room: Room, roles: Iterable[Role], sizes: RoleResources) -> str:
    """Why no room that comes free will help; empty where a task of each of these roles fits some node by itself."""
    return "; ".join(filter(None, (_misfit(role, getattr(sizes, role), room.shapes) for role in dict.fromkeys(roles))))


@lru_cache(LAST)
def _misfit(role: Role, wants: Resources, shapes: tuple[Resources, ...]) -> str:
    has = _nearest(wants, shapes)
    if has is None or fits(wants, has):
        return ""
    return f"{NEVER} for a {role}: it wants {told(wants)}, and the largest has {told(has)}"


def told(amount: Resources) -> str:
    return f"{amount.cpu:g} cpu, {amount.memory_gib:.4g} GiB" + (f", {amount.gpu} gpu" if amount.gpu else "")


def _nearest(wants: Resources, shapes: tuple[Resources, ...]) -> Resources | None:
    """The first that holds it; else the one that lacks least."""
    holding = next((has for has in shapes if fits(wants, has)), None)
    return holding or min(shapes, key=lambda has: _lack(wants, has), default=None)


def _lack(wants: Resources, has: Resources) -> float:
    """Shares of what is wanted that are not there, summed over cpu, memory and devices."""
    pairs = ((wants.cpu, has.cpu), (wants.memory_gib, has.memory_gib), (wants.gpu, has.gpu))
    return sum(1 - there / wanted for wanted, there in pairs if there < wanted)
