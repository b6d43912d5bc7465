"""Why a job has no pods to show the log of, and where to look instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from services.allocator.job_views import ENDED, JobView
from shared.text import format_names

ASK = "`weir submit FILE` asks for one"
LISTED = 10
"""So many jobs are named where the one that was meant is not there."""


def absent(key: str, views: Mapping[str, JobView]) -> str:
    """What to tell of the job `<namespace>.<job>`, from the views of all jobs."""
    name, view = key.replace(".", "/"), views.get(key)
    if view is None:
        return f"there is no job {name}; {_listed(views)}"
    if view.phase in ENDED.values():
        more = f"`weir events -n {view.namespace} --job {view.job}` tells what happened, with --json its whole cause"
        return f"job {name} is over ({view.phase.lower()}), and its logs went with its pods; {more}"
    return f"job {name} has no pods yet: {view.why or view.reason or 'it is about to start'}"


def _listed(views: Mapping[str, JobView]) -> str:
    names = [key.replace(".", "/") for key in sorted(views)]
    if not names:
        return f"there are none; {ASK}"
    return (
        f"there are {format_names(names, LISTED)}{' (`weir jobs`)' if len(names) > LISTED else ''}"
    )
