"""What `weir up` leaves behind when it goes down: which jobs were under way, and where they go on.
Reads the bus.

A job's pods are told to end as if their machine were shut down, and its chief saves within that
grace; the next `weir up` of the same folder reads the same bus, finds the job wanted and without
pods, and gives it new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

from services.allocator.job_views import ENDED, JobView
from services.cli.jobs import snapshots
from services.local.kubelet.container import KubeletSettings
from shared.bus.bus import Bus
from shared.messages import CheckpointSaved
from shared.text import format_count, format_some_names

GOING = f"weir is going down: what runs saves first, for which it has {KubeletSettings().shutdown_s:g} s."
NOTHING = "weir is down; no job was under way. All that happened stays in {folder}."
GOES_ON = "weir goes on with what the `weir up` before it left: {jobs}."
LEFT = "weir is down. {jobs} not over; the next `weir up` with {folder} goes on with what is below:"

NAMES_MOST = 8

Left = Mapping[str, tuple[JobView, CheckpointSaved | None]]
"""By key: jobs that are not over, and the last checkpoint of each."""


async def left(bus: Bus) -> Left:
    async with aclosing(snapshots(bus, None)) as changes:
        views = await anext(changes)
    under_way = {key: view for key, view in views.items() if view.phase not in ENDED.values()}
    return {
        key: (view, await _saved(bus, key, view.uid)) for key, view in sorted(under_way.items())
    }


async def _saved(bus: Bus, key: str, uid: int) -> CheckpointSaved | None:
    found = await bus.last_message(CheckpointSaved, key)
    said = found.message if found else None
    return said if isinstance(said, CheckpointSaved) and said.uid == uid else None


def goes_on(under_way: Left) -> str:
    """With which jobs, and where; nothing where there are none."""
    jobs = [f"{_named(key)} from {_place(*found)}" for key, found in under_way.items()]
    return GOES_ON.format(jobs=format_some_names(jobs, "job", NAMES_MOST)) if jobs else ""


def _place(view: JobView, saved: CheckpointSaved | None) -> str:
    return (
        "its beginning"
        if saved is None
        else f"step {saved.step:,}{_share(view, saved, ' ({:.0f} %)')}"
    )


def told(under_way: Left, folder: Path, here: Path) -> list[str]:
    """Line by line. `folder`: where all of it lies; `here`: paths below it are told from there."""
    if not under_way:
        return [NOTHING.format(folder=folder)]
    jobs = f"{format_count(len(under_way), 'job')} {'was' if len(under_way) == 1 else 'were'}"
    names = {key: _named(key) for key in under_way}
    wide = max(map(len, names.values()))
    lines = (f"  {names[key]:<{wide}}  {_one(*found, here)}" for key, found in under_way.items())
    return [LEFT.format(jobs=jobs, folder=folder), *lines]


def _named(key: str) -> str:
    return key.removeprefix("default.").replace(".", "/")


def _one(view: JobView, saved: CheckpointSaved | None, here: Path) -> str:
    if saved is None:
        return "has no checkpoint yet: it begins at its beginning"
    path = Path(saved.path)
    where = path.relative_to(here) if path.is_relative_to(here) else saved.path
    return f"saved at step {saved.step:,}{_share(view, saved, ', {:.0f} % done')}: {where}"


def _share(view: JobView, saved: CheckpointSaved, words: str) -> str:
    """Where it is known how much there is to do."""
    return words.format(100 * saved.samples / view.total_samples) if view.total_samples else ""
