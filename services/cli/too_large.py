"""Does a job that was just accepted wait for ever, as things are? Read from the view that the
allocator keeps of it.

Whether a task fits some node is for the allocator to say: it knows the nodes, and with its first
look at a job it says so. Who asked for the job waits for that word, but not long; where it does not
come, nothing is told.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from nats.errors import Error as NatsError

from services.allocator.job_views import JobView
from services.allocator.placement.shortage import NEVER
from services.cli.jobs import snapshots
from shared.bus.bus import Bus
from shared.messages import JobAccepted
from shared.text import single_line

WORD_S = 2.0
"""So long the allocator's first word on it is waited for."""


async def too_large(bus: Bus, accepted: JobAccepted) -> str:
    """A warning; empty where there is nothing to warn of, or nothing known."""
    try:
        async with asyncio.timeout(WORD_S):
            return warning(await _first_word(bus, accepted))
    except (NatsError, OSError, TimeoutError):
        return ""


async def _first_word(bus: Bus, accepted: JobAccepted) -> JobView:
    async with aclosing(snapshots(bus, accepted.namespace, accepted.job)) as changes:
        async for views in changes:
            for view in views.values():
                if view.uid == accepted.uid and (view.why or view.phase != "Pending"):
                    return view
    raise TimeoutError


def warning(view: JobView) -> str:
    """One line."""
    if view.phase != "Pending" or not view.why.startswith(NEVER):
        return ""
    return f"weir submit: it was accepted, but {single_line(view.why)}. It waits for a larger node"
