"""Which resource lacks where a job's tasks find no room: the one without which they would.

They are placed once more, on trial, as if they wanted nothing of one resource: where they fit then, there is too little
of it. Where it takes more than one, these together; none where no node takes tasks, or the quota is what is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from msgspec.structs import replace

from services.allocator.placing.placement import ROLES, Room, Size, place
from shared.messages import Resources, RoleResources, TaskPlan

WORDS = {"cpu": "cpu", "memory_gib": "memory", "gpu": "devices"}
Placing = Callable[[Room, str, Sequence[TaskPlan], Size, RoleResources, int], Sequence[TaskPlan] | None]


def lacking(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, how: Placing = place
) -> str:
    """To be put behind `waits for room`: ` (too little memory)`; empty where there is nothing to name."""
    question = None if keep else room.question(job, size, size, sizes)
    if question is None:
        return _told(_lacking(room, job, keep, size, sizes, how))
    if question not in room.lacks:
        room.lacks[question] = _told(_lacking(room, job, keep, size, sizes, how))
    return room.lacks[question]


def _lacking(
    room: Room, job: str, keep: Sequence[TaskPlan], size: Size, sizes: RoleResources, how: Placing
) -> tuple[str, ...]:
    """The fewest, in the order of `WORDS`. That with all of them there is no room, who asks has found out."""
    wanted = [name for name in WORDS if any(getattr(getattr(sizes, role), name) for role in ROLES)]
    for count in range(1, len(wanted) + 1):
        for names in combinations(wanted, count):
            mark = room.mark()
            found = how(room, job, keep, size, _without(sizes, names), 0)
            room.undo(mark)
            if found is not None:
                return names
    return ()


def _without(sizes: RoleResources, names: Sequence[str]) -> RoleResources:
    nothing = dict.fromkeys(names, 0)
    each: dict[str, Resources] = {role: replace(getattr(sizes, role), **nothing) for role in ROLES}
    return RoleResources(**each)


def _told(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f" (too {'few' if names == ('gpu',) else 'little'} {' and '.join(WORDS[name] for name in names)})"
