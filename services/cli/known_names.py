"""Names that a person may be about to type, as far as the bus tells them at once; nothing where it
does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import pairwise

from services.cli import connection
from services.console.board.figures import is_ended
from services.console.job_view_reader import follow_views
from services.console.trouble import DONE, Trouble
from shared.bus.bus import Bus
from shared.bus.subjects import is_name

ANSWER_S = 1.0
CANCEL = "cancel"
"""The command that means only jobs that are not over."""
OPTIONS = ("-n", "--namespace")


def print_names(
    what: str, typed: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]
) -> int:
    """One a line. `typed`: the command and what stands behind it; jobs are those of the namespace
    that it means.
    """
    live = list(typed[:1]) == [CANCEL]
    asked = argparse.Namespace(
        nats=None, what=what, live=live, namespace=namespace(what, typed, parsers)
    )
    with suppress(Trouble, OSError, TimeoutError):
        connection.on_bus(asked, _names, within_s=ANSWER_S)
    return DONE


def namespace(
    what: str, typed: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]
) -> str | None:
    """None: all of them."""
    if what != "jobs":
        return None
    named = [word for option, word in pairwise(typed) if option in OPTIONS and is_name(word)]
    if named:
        return named[-1]
    parser = parsers.get(typed[0]) if typed else None
    usual = parser.get_default("namespace") if parser else None
    return usual if isinstance(usual, str) else None


async def _names(bus: Bus, args: argparse.Namespace) -> int:
    async with aclosing(follow_views(bus, args.namespace)) as changes:
        views = [
            view for view in (await anext(changes)).values() if not (args.live and is_ended(view))
        ]
    names = {view.job if args.what == "jobs" else view.namespace for view in views}
    print("\n".join(sorted(filter(is_name, names))))  # a shell looks closely at what it is told
    return DONE
