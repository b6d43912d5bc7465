"""`weir streams create|verify`: the streams and buckets that the services need; the one place that makes them."""

from __future__ import annotations

import argparse

from services.cli import connection
from services.cli.trouble import DONE
from shared.bus import Bus
from shared.permissions import SETUP
from shared.streams import BUCKETS, GIB, streams
from shared.subjects import PROGRAMS

EXAMPLES = ("weir streams create", "weir streams create --replicas 3 --orders-gib 4", "weir streams verify")


def arguments(parser: argparse.ArgumentParser) -> None:
    connection.arguments(parser)
    said = "create: make them, or bring them up to date; verify: fail unless they are there"
    parser.add_argument("what", choices=("create", "verify"), help=said)
    kept = "how many servers of a cluster keep each stream (default: 1)"
    parser.add_argument("--replicas", type=int, choices=(1, 3, 5), default=1, help=kept)
    room = "how much weir-orders may hold (default: 1, or what it has been given before); full, it refuses every order"
    parser.add_argument("--orders-gib", type=int, default=0, metavar="N", help=room)


def run(args: argparse.Namespace) -> int:
    return connection.on_bus(args, create if args.what == "create" else verify, user=SETUP)


async def create(bus: Bus, args: argparse.Namespace) -> int:
    await bus.create(args.replicas, args.orders_gib * GIB)
    return _show("made")


async def verify(bus: Bus, args: argparse.Namespace) -> int:
    await bus.verify()
    for bucket in BUCKETS:
        await bus.bucket(bucket)
    await bus.programs()
    return _show("there")


def _show(how: str) -> int:
    for what, names in (("streams", [str(s.name) for s in streams()]), ("buckets", [*BUCKETS, PROGRAMS])):
        print(f"{what} {', '.join(names)} are {how}")
    return DONE
