"""`weir completion SHELL`: a script that completes `weir`'s words, for bash, zsh or fish. Needs no
bus.

The script itself asks by `--names` for what only the bus knows.
"""

from __future__ import annotations

import argparse
import sys

from services.cli import known_names
from services.cli.shells import bash, fish, zsh
from services.cli.shells.vocabulary import vocabulary
from services.console.trouble import DONE

EXAMPLES = (
    "source <(weir completion bash)",
    "weir completion zsh > ~/.zfunc/_weir",
    "weir completion fish > ~/.config/fish/completions/weir.fish",
)
SHELLS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS), metavar="SHELL", help="bash, zsh or fish")
    said = "only these names, as far as the bus tells them at once: jobs or namespaces; then what was typed"
    parser.add_argument("--names", nargs=argparse.REMAINDER, metavar="WHAT", help=said)


def run(args: argparse.Namespace) -> int:
    """`args.parsers()`: those of all commands."""
    if args.names:
        what, *typed = args.names
        return known_names.print_names(what, typed, args.parsers())
    sys.stdout.write(SHELLS[args.shell](vocabulary(args.parsers())))
    return DONE
