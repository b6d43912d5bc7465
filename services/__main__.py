"""The command `weir`: one sub-command a module of `services/cli/`, imported only when it is meant."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from services.cli.trouble import INTERRUPTED, PIPE_CLOSED, Trouble
from shared import log

COMMANDS = {
    "up": "run all of Weir on this machine",
    "demo": "watch a job grow and shrink on this machine",
    "submit": "ask for training",
    "jobs": "list the jobs",
    "events": "show what happened, and what happens",
    "page": "serve a page in the browser: nodes, jobs, decisions, and what if",
    "explain": "why a job has what it has, and what would get it more: weir explain digits --at '10m ago'",
    "logs": "show what a task prints",
    "cancel": "stop a job",
    "simulate": "what would happen to these jobs on these machines",
    "decide": "the shipping decision as JSON: a world a line in, decisions a line out",
    "credentials": "write who may do what on the bus, as files",
    "dead-letters": "what nobody could read, and why; put one back",
    "streams": "create or verify the streams on NATS",
}


def main() -> int:
    log.configure("cli", "error")
    return weir(sys.argv[1:])


def weir(words: Sequence[str]) -> int:
    args = parser(words[0] if words else "").parse_args(words)
    return _run(command(args.command), args)


def parser(chosen: str) -> argparse.ArgumentParser:
    """All commands by name; the chosen one with its arguments."""
    whole = argparse.ArgumentParser(prog="weir", description="elastic TensorFlow training on Kubernetes")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, said in COMMANDS.items():
        one = commands.add_parser(name, help=said, description=said)
        if name == chosen:
            command(name).arguments(one)
    return whole


def command(name: str) -> ModuleType:
    return importlib.import_module(f"services.cli.{name.replace('-', '_')}")


def _run(chosen: ModuleType, args: argparse.Namespace) -> int:
    try:
        code = int(chosen.run(args))
        sys.stdout.flush()
        return code
    except Trouble as trouble:
        print(f"weir {args.command}: {trouble}", file=sys.stderr)
        return trouble.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
