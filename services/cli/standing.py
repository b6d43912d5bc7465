"""Is there a job of this name to cancel? Pure: from the newest order of each kind on the name."""

from __future__ import annotations

from typing import Literal

Standing = Literal["unknown", "open", "over"]


def standing(requested: int, accepted: int, rejected: int, finished: int) -> Standing:
    """Each is a job's uid, 0 where nothing was said. A refused request for a running job's name
    changes nothing.
    """
    if not requested and not accepted:
        return "unknown"
    if accepted and accepted != finished:
        return "open"
    answered = requested in (0, accepted, rejected)
    return "over" if answered else "open"
