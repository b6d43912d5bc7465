"""`weir completion SHELL`: print a script for bash, zsh or fish that completes `weir`'s words.

The script runs `weir` with `_WEIR_COMPLETE` in its environment; click answers with the words that
fit. Names of jobs and namespaces come from the bus (`known_names.py`).
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

from services.cli import known_names
from services.cli.command_line import Arguments, argument, command, flag
from services.console.trouble import DONE, WRONG_USE, Trouble

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
        return known_names.print_names(weir, *args.words)
    if args.words:
        raise Trouble(f"unexpected words: {' '.join(args.words)}", WRONG_USE)
    sys.stdout.write(completion_script(args.shell, weir))
    return DONE


def completion_script(shell: str, weir: click.Command) -> str:
    """Return the completion script of a shell without running the shell, unlike click's `source()`."""
    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(weir, {}, "weir", "_WEIR_COMPLETE")
    return complete.source_template % complete.source_vars()
