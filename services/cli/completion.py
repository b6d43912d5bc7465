"""`weir completion SHELL`: a script that completes `weir`'s words, for bash, zsh or fish. Needs no bus."""

from __future__ import annotations

import argparse
import sys

from services.cli.shells import bash, fish, zsh
from services.cli.shells.vocabulary import vocabulary
from services.cli.trouble import DONE

EXAMPLES = (
    "source <(weir completion bash)",
    "weir completion zsh > ~/.zfunc/_weir",
    "weir completion fish > ~/.config/fish/completions/weir.fish",
)
SHELLS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS), metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """`args.parsers()`: those of all commands."""
    sys.stdout.write(SHELLS[args.shell](vocabulary(args.parsers())))
    return DONE
