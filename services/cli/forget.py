"""`weir forget JOB`: remove what a finished job left on the bus, and its checkpoints, if that is
wanted.
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
from services.console.log_reader import read_entries
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
FOLDER = Path(".weir/checkpoints")
REMOVED_S, LOOK_S = 60.0, 0.1


@command(EXAMPLES)
@nats_option
@namespace_option()
@job_argument
@flag(
    "--checkpoints",
    help="remove its checkpoints too; without it they stay, unless you say yes at a terminal",
)
@option(
    "--folder",
    type=FILE,
    default=FOLDER,
    metavar="FOLDER",
    help=f"the checkpoints of all jobs (default: {FOLDER})",
)
@timeout_option(REMOVED_S, "how long to wait until it is removed")
def run(args: Arguments) -> int:
    return connection.on_bus(args, forget_job)


async def forget_job(bus: Bus, args: Arguments) -> int:
    order = ForgetRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    name = f"{order.namespace}/{order.job}"
    await _require_over(bus, name, order.key())
    kept = await _kept_checkpoints(bus, order.key())
    user = await _job_that_continues(bus, kept, order.namespace) if kept else ""
    asked_for = await bus.last_sequence(JobRequested, order.key())
    await bus.request_unread(order)
    await _wait_until_removed(bus, name, order.key(), asked_for, args.timeout)
    print(f"job {name} is forgotten")
    if user:
        print(f"its checkpoints stay: job {user} continues from them and is not over")
    elif kept:
        _remove_checkpoints(kept, args)
    return DONE


async def _require_over(bus: Bus, name: str, key: str) -> None:
    how = await standing_of(bus, key)
    if how == "unknown":
        raise Trouble(f"there is no job {name}; `weir jobs` lists them")
    if how != "over":
        raise Trouble(f"job {name} is not over; `weir cancel {key.partition('.')[2]}` stops it")


async def _wait_until_removed(
    bus: Bus, name: str, key: str, asked_for: int, within_s: float
) -> None:
    """Return once the job's request, at this sequence, is gone; a later one for the same name may
    be there.
    """
    try:
        async with asyncio.timeout(within_s):
            while asked_for and await bus.last_sequence(JobRequested, key) == asked_for:
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise Trouble(
            f"job {name} is not removed within {within_s:g} s; is the allocator running?\n"
            "The request stays stored until it is."
        ) from None


# ---------------------------------------------------------------- checkpoints


async def _kept_checkpoints(bus: Bus, key: str) -> str:
    """Return where a job's checkpoints are, below the folder of all jobs or as a URL; nothing where
    it has none.
    """
    heard = await bus.last_message(JobAccepted, key)
    if (
        heard is None
        or not isinstance(heard.message, JobAccepted)
        or not heard.message.checkpoint_folder
    ):
        return ""
    accepted = heard.message
    place = checkpoints.checkpoint_location(
        accepted.request, accepted.uid, accepted.checkpoint_folder
    )
    return place if checkpoints.is_in_namespace(place, accepted.namespace) else ""


async def _job_that_continues(bus: Bus, place: str, namespace: str) -> str:
    """Return the name of a job that is not over and began with the checkpoints at a place; empty if
    there is none.

    Only jobs of the same namespace can: their requests are refused otherwise.
    """
    accepted = pattern(JobAccepted, f"{namespace}.*")
    async with aclosing(
        read_entries(bus, [StreamQuery(ORDERS, [accepted])], follow=False)
    ) as entries:
        async for entry in entries:
            if isinstance(entry.message, JobAccepted):
                earlier = entry.message.request.checkpoint.continue_from or ""
                if (
                    earlier.strip("/") == place.strip("/")
                    and await standing_of(bus, entry.message.key()) == "open"
                ):
                    return f"{namespace}/{entry.message.job}"
    return ""


def _remove_checkpoints(place: str, args: Arguments) -> None:
    """Remove them where that is wanted; else say where they are."""
    folder = args.folder / place
    if (
        "://" in place
        or not folder.resolve().is_relative_to(args.folder.resolve())
        or not folder.is_dir()
    ):
        print(f"its checkpoints stay: {place} is not below {args.folder}")
    elif args.checkpoints or _confirm_removal(folder):
        shutil.rmtree(folder)
        print(f"its checkpoints are removed: {folder}")
    else:
        print(f"its checkpoints stay: {folder}")


def _confirm_removal(folder: Path) -> bool:
    """Ask the person at the terminal; where there is none, no."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input(f"remove its checkpoints in {folder}, too? [y/N] ").strip().lower() in ("y", "yes")
