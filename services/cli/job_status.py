"""Is there a job of this name to cancel? Pure: from the newest order of each kind on the name.

Waiting for what is said back to a person. Edge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Literal, TypeVar

from services.console.log_reader import read_entries
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import pattern, stream_holding
from shared.messages import Message

Standing = Literal["unknown", "open", "over"]


def job_standing(requested: int, accepted: int, rejected: int, finished: int) -> Standing:
    """Each is a job's uid, 0 where nothing was said. A refused request for a running job's name
    changes nothing.
    """
    if not requested and not accepted:
        return "unknown"
    if accepted and accepted != finished:
        return "open"
    answered = requested in (0, accepted, rejected)
    return "over" if answered else "open"


M = TypeVar("M", bound=Message)


async def first_message(
    bus: Bus,
    kinds: tuple[type[M], ...],
    after: int,
    is_wanted: Callable[[M], bool],
    within_s: float,
    key: str = ">",
) -> M | None:
    """The first order of these kinds stored behind `after` that is the one; None where none comes
    in time.
    """
    wanted = StreamQuery(
        stream_holding(pattern(kinds[0])), [pattern(kind, key) for kind in kinds], after=after
    )
    try:
        async with (
            asyncio.timeout(within_s),
            aclosing(read_entries(bus, [wanted], follow=True)) as entries,
        ):
            async for entry in entries:
                if isinstance(entry.message, kinds) and is_wanted(entry.message):
                    return entry.message
    except TimeoutError:
        return None
    return None
