"""The command `weir`: one sub-command a module of `services/cli/`, imported only when it is
meant.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from services.cli.parsing import WIDTH, Parser
from services.cli.suggest import advice
from services.console.trouble import (
    CODES,
    DONE,
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    WRONG_USE,
    Trouble,
)
from shared.runtime import log
from shared.version import VERSION

COMMANDS = {
    "up": "run all of Weir on this machine",
    "demo": "watch a job grow on this machine, as others make room",
    "doctor": "try a training program before it costs anything",
    "submit": "ask for training",
    "jobs": "list the jobs",
    "top": "watch nodes and jobs",
    "events": "show what happened, and what happens",
    "page": "serve a page in the browser: nodes, jobs, and what if",
    "why": "what led to an event, and what came of it",
    "explain": "why a job has what it has, and what would get it more",
    "report": "one job as a page: times, pauses, cost, forecasts",
    "logs": "show what a task prints",
    "change": "give a job another priority, or other bounds",
    "suspend": "save and stop a job for a while",
    "resume": "let a suspended job go on",
    "cancel": "stop a job",
    "forget": "remove what a finished job left",
    "recover": "after a loss of the bus: which jobs can go on, and let them",
    "simulate": "what would happen to these jobs on these machines",
    "decide": "the decision as JSON: a world a line in, decisions a line out",
    "credentials": "write who may do what on the bus, as files",
    "dead-letters": "what nobody could read, and why; put one back",
    "streams": "create or verify the streams on NATS",
    "asyncapi": "every subject and message, for machines or as a page",
    "completion": "write the completion of these words for a shell",
}


TOGETHER = {"jobs": "top", "suspend": "resume", "cancel": "forget"}
"""Commands that share a line of the overview, which has to fit a screen."""
INSTALL = "`pip install 'weir[all]'`"
USAGE = "weir COMMAND [--help] ... | --version: elastic TensorFlow training"
NO_BREAK = "\N{NO-BREAK SPACE}"


def main() -> int:
    # A command says itself what went wrong, in one line: asyncio's report of the same stays out of
    # the terminal.
    log.configure_logging("cli", "error", asyncio_level=logging.CRITICAL)
    return weir(sys.argv[1:])


def weir(words: Sequence[str]) -> int:
    if words and words[0] == "--version":
        print(f"weir {VERSION}")
        return DONE
    if not words or words[0].startswith("-"):
        return _overview(words)
    if words[0] not in COMMANDS:
        print(f"usage: {USAGE}\nweir: {advice(words, COMMANDS)}", file=sys.stderr)
        return WRONG_USE
    try:
        args = parser(words[0]).parse_args(
            words[1:], argparse.Namespace(command=words[0], parsers=parsers)
        )
        return run(command(words[0]), args)
    except ModuleNotFoundError as error:
        return _needs_package(words[0], error)


def _needs_package(name: str, error: ModuleNotFoundError) -> int:
    """Say which extra of Weir brings a package that a command needs; a module of Weir that lacks is
    our fault.
    """
    package = (error.name or "").partition(".")[0]
    if package in ("", "services", "shared"):
        raise error
    print(
        f"weir {name}: {package} is not installed; {INSTALL} brings what every command needs",
        file=sys.stderr,
    )
    return FAILED


def _overview(words: Sequence[str]) -> int:
    """All commands, as asked for; or, where nothing was, what else there is to say."""
    asked = bool(words) and words[0] in ("-h", "--help")
    print(overview(), file=sys.stdout if asked else sys.stderr, end="")
    return DONE if asked else WRONG_USE


def overview() -> str:
    """One line a command, and how each ends."""
    rows = {name: said for name, said in COMMANDS.items() if name not in TOGETHER.values()}
    for name, other in TOGETHER.items():
        rows = {f"{name}, {other}" if row == name else row: said for row, said in rows.items()}
        rows[f"{name}, {other}"] += f"; {COMMANDS[other]}"
    wide = max(map(len, rows)) + 2
    codes = ", ".join(f"{code} {said}".replace(" ", NO_BREAK) for code, said in CODES.items())
    wrapped = textwrap.wrap(f"exit codes: {codes}", WIDTH, subsequent_indent=" " * 12)
    ends = [line.replace(NO_BREAK, " ") for line in wrapped]
    lines = [f"usage: {USAGE}", *(f"  {name:<{wide}}{said}" for name, said in rows.items()), *ends]
    return "\n".join(lines) + "\n"


def parser(name: str) -> Parser:
    """Of one command, with its arguments."""
    module = command(name)
    made = Parser(f"weir {name}", COMMANDS[name], getattr(module, "EXAMPLES", ()))
    module.arguments(made)
    return made


def parsers() -> dict[str, Parser]:
    """Of all commands, for who has to know every word."""
    return {name: parser(name) for name in COMMANDS}


def command(name: str) -> ModuleType:
    return importlib.import_module(f"services.cli.{name.replace('-', '_')}")


def run(chosen: Any, args: argparse.Namespace) -> int:
    """`chosen`: a command's module. How it ends, as `trouble.CODES` has it."""
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
