"""`weir resume JOB`: let a suspended job go on from where it was."""

from __future__ import annotations

import argparse
import uuid

from services.cli import connection
from services.cli.change import ask_for, job_arguments
from services.console.trouble import DONE
from shared.bus.bus import Bus
from shared.messages import ResumeRequested

EXAMPLES = ("weir resume digits", "weir resume digits -n team-a")


def arguments(parser: argparse.ArgumentParser) -> None:
    job_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return connection.on_bus(args, resume)


async def resume(bus: Bus, args: argparse.Namespace) -> int:
    order = ResumeRequested(job=args.job, namespace=args.namespace, request_id=uuid.uuid4().hex)
    await ask_for(bus, order, args.timeout)
    print(f"job {args.namespace}/{args.job} goes on as soon as there is room for it")
    return DONE
