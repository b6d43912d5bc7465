"""`weir suspend JOB`: let a job save and give back what it has, until `weir resume`."""

from __future__ import annotations

import argparse
import uuid

from services.cli import connection
from services.cli.change import ask_for, job_arguments
from services.console.trouble import DONE
from shared.bus.bus import Bus
from shared.messages import SuspendRequested

EXAMPLES = ("weir suspend digits", "weir suspend digits -n team-a")


def arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return connection.on_bus(args, suspend)


async def suspend(bus: Bus, args: argparse.Namespace) -> int:
    order = SuspendRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    await ask_for(bus, order, args.timeout)
    print(f"job {args.namespace}/{args.job} saves and gives back what it has")
    print(f"once `weir jobs` calls it Suspended: `weir resume {args.job}` lets it go on")
    return DONE
