"""`weir streams create|verify`: create or verify the streams and buckets that the services need.
Nothing else creates them.

The command also provisions the namespaces of jobs: `default`, those of WEIR_JOB_NAMESPACES, and
those of --namespace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from services.cli import connection
from services.cli.command_line import NAMESPACE, Arguments, argument, command, nats_option, option
from services.console.trouble import DONE, WRONG_USE, Trouble
from shared.auth.permissions import SETUP
from shared.bus.bus import Bus
from shared.bus.intake import DEFAULT_RATES, Rates
from shared.bus.streams import BUCKETS, MIB, PROGRAMS_BYTES, stream_configs, with_default
from shared.bus.subjects import program_bucket
from shared.messages import GIB
from shared.runtime import config

EXAMPLES = (
    "weir streams create --namespace team-a --namespace team-b",
    "weir streams create --replicas 3 --orders-gib 4",
    "weir streams verify",
)
NAMESPACES = "WEIR_JOB_NAMESPACES"


@command(EXAMPLES)
@nats_option
@argument(
    "what",
    type=click.Choice(("create", "verify")),
    help="create: create or update them; verify: fail if one is missing",
)
@option(
    "--replicas",
    type=click.Choice((1, 3, 5)),
    help="servers that store each stream (default: 1, or as before)",
)
@option(
    "--orders-gib",
    type=int,
    default=0,
    metavar="N",
    help="size limit of weir-orders (default: 1, or as before)",
)
@option(
    "--namespace",
    type=NAMESPACE,
    multiple=True,
    metavar="NS",
    help=f"a namespace beyond those of {NAMESPACES}; may be repeated",
)
@option(
    "--programs-mib",
    type=int,
    default=0,
    metavar="N",
    help=f"size limit of a namespace's programs (default: {PROGRAMS_BYTES // MIB}, or as before)",
)
@option(
    "--requests-kib-s",
    type=int,
    default=0,
    metavar="N",
    help=f"rate of a namespace's requests (default: {DEFAULT_RATES.requests}, or as before)",
)
@option(
    "--reports-kib-s",
    type=int,
    default=0,
    metavar="N",
    help=f"rate of a namespace's facts (default: {DEFAULT_RATES.reports}, or as before)",
)
def run(args: Arguments) -> int:
    return connection.on_bus(
        args, create_streams if args.what == "create" else verify_streams, user=SETUP
    )


async def create_streams(bus: Bus, args: Arguments) -> int:
    namespaces = namespaces_to_provision(args.namespace, os.environ)
    rates = Rates(requests=args.requests_kib_s, reports=args.reports_kib_s)
    await bus.create(
        args.replicas or 0, args.orders_gib * GIB, namespaces, args.programs_mib * MIB, rates
    )
    return _print_streams("made", namespaces)


def namespaces_to_provision(given: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return `default`, the namespaces that the setting lists, and those given on the command
    line.
    """
    settings = {NAMESPACES: environ[NAMESPACES]} if NAMESPACES in environ else {}
    try:
        listed = config.load_settings(config.Common, "setup", settings).job_namespaces
    except config.BadSettings as bad:
        raise Trouble(str(bad), WRONG_USE) from bad
    return with_default([*listed, *given])


async def verify_streams(bus: Bus, args: Arguments) -> int:
    await bus.verify()
    namespaces = namespaces_to_provision(args.namespace, os.environ)
    for bucket in BUCKETS:
        await bus.bucket(bucket)
    for namespace in namespaces:
        await bus.program_store(namespace)
    return _print_streams("there", namespaces)


def _print_streams(how: str, namespaces: list[str]) -> int:
    buckets = [*BUCKETS, *map(program_bucket, namespaces)]
    for what, names in (("streams", [str(s.name) for s in stream_configs()]), ("buckets", buckets)):
        print(f"{what} {', '.join(names)} are {how}")
    return DONE
