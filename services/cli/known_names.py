"""The names of jobs and namespaces on the bus, for completion.

Return no names where the bus does not answer at once: a person waits at the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import pairwise

import click

from services.cli import connection
from services.cli.command_line import CANCEL, Arguments, default_namespace
from services.console.board.figures import is_ended
from services.console.job_view_reader import follow_views
from services.console.trouble import DONE, Trouble
from shared.bus.bus import Bus
from shared.bus.subjects import is_name

ANSWER_S = 1.0
OPTIONS = ("-n", "--namespace")


def known_names(kind: str, namespace: str | None, only_open: bool) -> list[str]:
    """Return the sorted names of jobs or namespaces (`kind`); of all namespaces, if None.

    Only names of the right form: a shell interprets what it is given.
    """
    found: list[str] = []

    async def collect(bus: Bus, _: Arguments) -> int:
        async with aclosing(follow_views(bus, namespace)) as changes:
            views = await anext(changes)
        for view in views.values():
            if not (only_open and is_ended(view)):
                found.append(view.job if kind == "jobs" else view.namespace)
        return DONE

    with suppress(Trouble, OSError, TimeoutError):
        connection.on_bus(Arguments(nats=None), collect, within_s=ANSWER_S)
    return sorted(set(filter(is_name, found)))


def print_names(weir: click.Command, kind: str = "", *typed: str) -> int:
    """Print one name a line. `typed`: the command and the words after it."""
    only_open = typed[:1] == (CANCEL,)
    for name in known_names(kind, typed_namespace(weir, kind, typed), only_open):
        print(name)
    return DONE


def typed_namespace(weir: click.Command, kind: str, typed: Sequence[str]) -> str | None:
    """Return the namespace of the jobs that the typed words mean; None means all of them."""
    if kind != "jobs":
        return None
    named = [word for option, word in pairwise(typed) if option in OPTIONS and is_name(word)]
    if named:
        return named[-1]
    assert isinstance(weir, click.Group)
    command = weir.get_command(click.Context(weir), typed[0]) if typed else None
    return default_namespace(command) if command else None
