"""The standing of a job's name, and the answer to a request.

`job_standing` is pure: it takes the newest order of each kind on the name. `first_message` reads
the bus.
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
    """Return the standing of a job's name. Each argument is the uid in the newest message of its
    kind, 0 if there is none. A rejected request for the name of a running job changes nothing.
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
    """Return the first wanted order of these kinds that is stored after the sequence `after`. Return
    None if none comes within `within_s` seconds.
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
