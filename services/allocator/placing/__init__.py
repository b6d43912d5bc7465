"""The older path of `placement`, for custom policies that were written for version 0.3 or earlier:
`from services.allocator.placing.placement import Node, Room`. Weir's own code does not import it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from services.allocator.placement import room
from services.allocator.placement.placers import (
    FILLED,
    ROLES,
    Placer,
    has_room,
    ladder,
    place,
    place_most,
    shrink_tasks,
)
from services.allocator.policies.contract import Node, Size
from shared.messages import Resources

__all__ = ["FILLED", "ROLES", "Node", "Placing", "Room", "Size", "has_room", "ladder", "place"]
__all__ += ["place_most", "shrink"]

Placing = Placer
shrink = shrink_tasks


class Room(room.Room):
    """A room with the older names of its quotas: `purses` and `purse`."""

    def __init__(
        self, nodes: Any, purses: Mapping[str, Resources] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(nodes, purses, *args, **kwargs)

    @property
    def purses(self) -> dict[str, Resources]:
        return self.remaining_quotas

    def purse(self, job: str) -> Resources | None:
        return self.remaining_quota(job)


sys.modules[f"{__name__}.placement"] = sys.modules[__name__]
