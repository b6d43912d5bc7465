"""`weir cancel JOB`: stop a job, and wait until it has stopped."""

from __future__ import annotations

import uuid

from services.cli import connection
from services.cli.command_line import (
    Arguments,
    command,
    job_request_options,
)
from services.cli.connection import Standing, job_standing
from services.console.trouble import DONE, Trouble
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import CancelRequested, JobAccepted, JobFinished, JobRejected, JobRequested

EXAMPLES = ("weir cancel digits", "weir cancel digits -n team-a --timeout 2m")
LOOK = "`weir jobs` shows its state; --timeout waits longer."
STOPPED_S = 60.0


@command(EXAMPLES)
@job_request_options(STOPPED_S, "how long to wait until it has stopped")
def run(args: Arguments) -> int:
    return connection.on_bus(args, cancel_job)


async def cancel_job(bus: Bus, args: Arguments) -> int:
    request = CancelRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    name = f"{request.namespace}/{request.job}"
    await require_open(bus, name, request.key())
    sequence = await bus.request(request)
    end = await connection.first_message(
        bus, (JobFinished,), sequence, lambda _: True, args.timeout, request.key()
    )
    if end is None:
        raise Trouble(
            f"job {name} has not stopped within {args.timeout:g} s; "
            f"is the allocator running? {LOOK}"
        )
    if end.outcome != "cancelled":
        raise Trouble(
            f"job {name} {end.outcome} before it could be cancelled; `weir jobs` shows how it ended"
        )
    print(f"job {name} is cancelled")
    return DONE


async def require_open(bus: Bus, name: str, key: str) -> None:
    """Raise `Trouble` unless there is a job of this name that is not over."""
    state = await standing_of(bus, key)
    if state == "unknown":
        raise Trouble(f"there is no job {name}; `weir jobs` lists them")
    if state == "over":
        raise Trouble(f"job {name} is over already; `weir jobs` shows how it ended")


async def standing_of(bus: Bus, key: str) -> Standing:
    """Return the state of the job with this key: unknown, open or over."""
    requested = await bus.last_message(JobRequested, key)
    answered = []
    for kind in (JobAccepted, JobRejected, JobFinished):
        answered.append(_uid_of(await bus.last_message(kind, key)))
    return job_standing(requested.sequence if requested else 0, *answered)


def _uid_of(stored: StoredMessage | None) -> int:
    return int(getattr(stored.message, "uid", 0)) if stored else 0
