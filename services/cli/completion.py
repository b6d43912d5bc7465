"""`weir completion SHELL`: print a script for bash, zsh or fish that completes `weir`'s words.

The script runs `weir` with `_WEIR_COMPLETE` in its environment; click answers with the words that
fit. `known_names` reads the names of jobs and namespaces from the bus; it returns none if the bus
does not answer at once, because a person waits at the prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import pairwise

import click
from click.shell_completion import get_completion_class

from services.cli import connection
from services.cli.command_line import CANCEL, Arguments, argument, command, default_namespace, flag
from services.console.board.figures import is_ended
from services.console.bus_reader import follow_views
from services.console.trouble import DONE, WRONG_USE, Trouble
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


EXAMPLES = (
    "source <(weir completion bash)",
    "weir completion zsh > ~/.zfunc/_weir",
    "weir completion fish > ~/.config/fish/completions/weir.fish",
)
SHELLS = ("bash", "fish", "zsh")
NAMES_HELP = "only names that the bus knows, for scripts of earlier versions: jobs or namespaces"


@command(EXAMPLES, context_settings={"ignore_unknown_options": True})
@argument("shell", type=click.Choice(SHELLS), metavar="SHELL", help="bash, zsh or fish")
@flag("--names", help=NAMES_HELP)
@argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[WORD]...", help="with --names")
def run(args: Arguments) -> int:
    weir = click.get_current_context().find_root().command
    if args.names:
        return print_names(weir, *args.words)
    if args.words:
        raise Trouble(f"unexpected words: {' '.join(args.words)}", WRONG_USE)
    sys.stdout.write(completion_script(args.shell, weir))
    return DONE


def completion_script(shell: str, weir: click.Command) -> str:
    """Return the completion script of a shell without running the shell, unlike click's
    `source()`.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(weir, {}, "weir", "_WEIR_COMPLETE")
    return complete.source_template % complete.source_vars()
