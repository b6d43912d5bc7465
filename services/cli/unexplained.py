"""Why there is no job of this name to explain, at that moment. Pure."""

from __future__ import annotations

from datetime import datetime, tzinfo

from services.allocator.state.state import State
from services.cli.absence import ASK, LISTED
from services.whatif.event_log import Moment
from shared.messages import Message
from shared.text import format_names, single_line


def unexplained(there: Moment, key: str, later: Message | None, zone: tzinfo | None = None) -> str:
    """`later`: the newest acceptance of such a job in the whole log, if there is one."""
    name = key.replace(".", "/")
    asked = [a for a in there.state.asked.values() if a.request.key() == key]
    if asked:
        at = _time(asked[-1].asked_s, zone)
        return f"job {name}, asked for at {at}, was not answered yet: is the allocator running?"
    if there.rejected:
        return single_line(f"job {name} was refused: {'; '.join(there.rejected.reasons)}")
    at, accepted_s = _time(there.at_s, zone), getattr(later, "accepted_s", 0.0)
    if accepted_s > there.at_s:
        return f"there was no job {name} at {at}: it was accepted at {_time(accepted_s, zone)}"
    return f"the log tells of no job {name} up to {at}; {_listed(there.state)}"


def _listed(state: State) -> str:
    names = [key.replace(".", "/") for key in [*state.jobs, *reversed(state.closed)]]
    return f"it tells of {format_names(names, LISTED)}" if names else f"nor of any other; {ASK}"


def _time(at_s: float, zone: tzinfo | None) -> str:
    return f"{datetime.fromtimestamp(at_s, zone):%Y-%m-%d %H:%M:%S}"
