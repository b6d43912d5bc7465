"""`weir forget JOB`: remove a finished job's messages from the bus and, on request, its
checkpoints.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import uuid
from contextlib import aclosing
from pathlib import Path

from services.cli import connection
from services.cli.cancel import standing_of
from services.cli.command_line import (
    CHECKPOINTS,
    FILE,
    Arguments,
    command,
    flag,
    job_argument,
    namespace_option,
    nats_option,
    option,
    timeout_option,
)
from services.console.bus_reader import read_entries
from services.console.trouble import DONE, Trouble
from shared import checkpoints
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import ORDERS, pattern
from shared.messages import ForgetRequested, JobAccepted, JobRequested

EXAMPLES = (
    "weir forget digits",
    "weir forget digits -n team-a --checkpoints --folder /checkpoints",
)
REMOVED_S, LOOK_S = 60.0, 0.1


@command(EXAMPLES)
@nats_option
@namespace_option()
@job_argument
@flag(
    "--checkpoints",
    help="remove its checkpoints, too; without it they stay, unless you confirm at a terminal",
)
@option(
    "--folder",
    type=FILE,
    default=CHECKPOINTS,
    metavar="FOLDER",
    help=f"the checkpoints of all jobs (default: {CHECKPOINTS})",
)
@timeout_option(REMOVED_S, "how long to wait until it is removed")
def run(args: Arguments) -> int:
    return connection.on_bus(args, forget_job)


async def forget_job(bus: Bus, args: Arguments) -> int:
    request = ForgetRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    key = request.key()
    name = f"{request.namespace}/{request.job}"
    await _require_over(bus, name, key)
    location = await _kept_checkpoints(bus, key)
    user = await _job_that_continues(bus, location, request.namespace) if location else ""
    sequence = await bus.last_sequence(JobRequested, key)
    await bus.request_unread(request)
    await _wait_until_removed(bus, name, key, sequence, args.timeout)
    print(f"job {name} is forgotten")
    if user:
        print(f"its checkpoints stay: job {user} continues from them and is not over")
    elif location:
        _remove_checkpoints(location, args)
    return DONE


async def _require_over(bus: Bus, name: str, key: str) -> None:
    state = await standing_of(bus, key)
    if state == "unknown":
        raise Trouble(f"there is no job {name}; `weir jobs` lists them")
    if state != "over":
        raise Trouble(f"job {name} is not over; `weir cancel {key.partition('.')[2]}` stops it")


async def _wait_until_removed(
    bus: Bus, name: str, key: str, sequence: int, within_s: float
) -> None:
    """Wait until the job's request with this sequence is removed; a later one of the same name may
    be there.
    """
    try:
        async with asyncio.timeout(within_s):
            while sequence and await bus.last_sequence(JobRequested, key) == sequence:
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise Trouble(
            f"job {name} is not removed within {within_s:g} s; is the allocator running?\n"
            "The request is stored and will be handled."
        ) from None


# ---------------------------------------------------------------- checkpoints


async def _kept_checkpoints(bus: Bus, key: str) -> str:
    """Return the location of a job's checkpoints: a folder below that of all jobs, or a URL. Empty
    if it has none.
    """
    stored = await bus.last_message(JobAccepted, key)
    accepted = stored.message if stored else None
    if not isinstance(accepted, JobAccepted) or not accepted.checkpoint_folder:
        return ""
    location = checkpoints.checkpoint_location(
        accepted.request, accepted.uid, accepted.checkpoint_folder
    )
    return location if checkpoints.is_in_namespace(location, accepted.namespace) else ""


async def _job_that_continues(bus: Bus, location: str, namespace: str) -> str:
    """Return the name of a job that is not over and began with these checkpoints; empty if there is
    none.

    Only jobs of the same namespace can: their requests are refused otherwise.
    """
    query = StreamQuery(ORDERS, [pattern(JobAccepted, f"{namespace}.*")])
    async with aclosing(read_entries(bus, [query], follow=False)) as entries:
        async for entry in entries:
            accepted = entry.message
            if not isinstance(accepted, JobAccepted):
                continue
            earlier = accepted.request.checkpoint.continue_from or ""
            if earlier.strip("/") != location.strip("/"):
                continue
            if await standing_of(bus, accepted.key()) == "open":
                return f"{namespace}/{accepted.job}"
    return ""


def _remove_checkpoints(location: str, args: Arguments) -> None:
    """Remove a job's checkpoints if the user wants it; print their place otherwise."""
    folder = args.folder / location
    is_below = folder.resolve().is_relative_to(args.folder.resolve())
    if "://" in location or not is_below or not folder.is_dir():
        print(f"its checkpoints stay: {location} is not below {args.folder}")
    elif args.checkpoints or _confirm_removal(folder):
        shutil.rmtree(folder)
        print(f"its checkpoints are removed: {folder}")
    else:
        print(f"its checkpoints stay: {folder}")


def _confirm_removal(folder: Path) -> bool:
    """Ask the user at the terminal. Return False if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input(f"remove its checkpoints in {folder}, too? [y/N] ").strip().lower() in ("y", "yes")
