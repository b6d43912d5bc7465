"""The command `weir`. Each sub-command is a module of `services/cli/`, imported only when it runs
or its help is shown.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from services.console.trouble import CODES, DONE, FAILED, INTERRUPTED, WRONG_USE
from shared.version import VERSION

COMMANDS = {
    "up": "run all of Weir on this machine",
    "demo": "watch a job grow on this machine as capacity becomes free",
    "doctor": "test a training program before it is submitted",
    "submit": "submit a training job",
    "jobs": "list the jobs",
    "top": "watch nodes and jobs",
    "events": "show past and new events",
    "why": "the causes and effects of an event",
    "page": "serve a web page: nodes, jobs, and what-if questions",
    "explain": "the reasons for a job's size, and ways to get more",
    "report": "one job as a page: times, pauses, cost, forecasts",
    "logs": "show the output of a task",
    "change": "change a job's priority or its bounds of ps and workers",
    "suspend": "save and stop a job for a while",
    "resume": "continue a suspended job",
    "cancel": "stop a job",
    "forget": "remove a finished job's messages and checkpoints",
    "recover": "after a loss of the bus: list and continue jobs",
    "checkpoints": "a job's checkpoints: their sizes; merge one for Keras",
    "simulate": "simulate jobs on a cluster",
    "decide": "read clusters as lines of JSON, write the decisions for each",
    "credentials": "write the users, keys and permissions of the bus as files",
    "dead-letters": "list unreadable messages; publish one again",
    "streams": "create or verify the streams on NATS",
    "asyncapi": "describe all subjects and messages: AsyncAPI or Markdown",
    "completion": "write a completion script for a shell",
}


TOGETHER = {"jobs": "top", "suspend": "resume", "cancel": "forget", "events": "why"}
"""Commands that share a line of the overview, which has to fit a screen."""
WIDTH = 80
INSTALL = "`pip install 'weir[all]'`"
USAGE = "weir COMMAND [--help] ... | --version: elastic TensorFlow training"
NO_BREAK = "\N{NO-BREAK SPACE}"
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class UnknownCommand(click.UsageError):
    """A word that is no command; the text names the command that may be meant."""


class CommandGroup(click.Group):
    """All commands. The module of a command is imported when the command is requested."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"services.cli.{cmd_name.replace('-', '_')}")
        command = module.run
        assert isinstance(command, click.Command)
        command.name = cmd_name
        command.help = COMMANDS[cmd_name]
        command.context_settings = {**HELP_NAMES, **command.context_settings}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from services.cli.command_line import describe_unknown_command

            raise UnknownCommand(describe_unknown_command(args, COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any."""
        commands = []
        for name, text in COMMANDS.items():
            if name.startswith(incomplete):
                commands.append(CompletionItem(name, help=text))
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def known_names(self, kind: str, namespace: str | None, only_open: bool) -> list[str]:
        """Return the names on the bus that complete a word of a command."""
        from services.cli.completion import known_names

        return known_names(kind, namespace, only_open)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(overview_text())


WEIR = click.version_option(VERSION, message="weir %(version)s")(
    CommandGroup("weir", context_settings=HELP_NAMES)
)


def main() -> int:
    return weir(sys.argv[1:], prepare=_configure_logging)


def _configure_logging() -> None:
    """Hide asyncio's report of an error: the command prints the same error in one line."""
    import logging

    from shared.runtime import log

    log.configure_logging("cli", "error", asyncio_level=logging.CRITICAL)


def weir(words: Sequence[str], prepare: Callable[[], None] | None = None) -> int:
    """Run a command line and return its exit code. `prepare` is called before a command runs."""
    try:
        return int(WEIR.main(list(words), "weir", standalone_mode=False, obj=prepare) or DONE)
    except click.UsageError as error:
        print(_usage_text(error), file=sys.stderr)
        return WRONG_USE
    except click.Abort:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        return _needs_package(words[0], error)


def _usage_text(error: click.UsageError) -> str:
    """Return the text for a wrong use: the usage, the error, and the option for help."""
    if isinstance(error, UnknownCommand):
        return f"usage: {USAGE}\nweir: {error.format_message()}"
    if error.ctx is None or error.ctx.command is WEIR:
        return overview_text()
    path = error.ctx.command_path
    return f"{error.ctx.get_usage()}\n{path}: {error.format_message()}\nTry `{path} --help`."


def _needs_package(name: str, error: ModuleNotFoundError) -> int:
    """Name the extra of Weir with a package that a command needs. Raise the error again if a module
    of Weir itself is missing.
    """
    package = (error.name or "").partition(".")[0]
    if package in ("", "services", "shared"):
        raise error
    print(
        f"weir {name}: {package} is not installed; {INSTALL} installs everything that commands"
        " need",
        file=sys.stderr,
    )
    return FAILED


def overview_text() -> str:
    """Return the help of `weir`: one line a command, and the exit codes."""
    rows = []
    for name, text in COMMANDS.items():
        if name in TOGETHER:
            other = TOGETHER[name]
            rows.append((f"{name}, {other}", f"{text}; {COMMANDS[other]}"))
        elif name not in TOGETHER.values():
            rows.append((name, text))
    width = max(len(names) for names, _ in rows) + 2
    codes = ", ".join(f"{code} {text}".replace(" ", NO_BREAK) for code, text in CODES.items())
    wrapped = textwrap.wrap(f"exit codes: {codes}", WIDTH, subsequent_indent=" " * 12)
    commands = [f"  {names:<{width}}{text}" for names, text in rows]
    return "\n".join([f"usage: {USAGE}", *commands, *wrapped]).replace(NO_BREAK, " ")


if __name__ == "__main__":
    sys.exit(main())
