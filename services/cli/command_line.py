"""The command line of `weir`, on top of click: commands, their pages of help, and the options and
types of values that several commands have.

A usage line names the arguments; the options stand below it, one a line, on a page that fits a
screen. Options that few people need have a help page of their own (`help_page`).

The functions that parse values raise `ValueError` with the reason; `shared/text.py` formats values.
A policy `module:function` is a custom one, and is imported. A time is a function of now:

    2026-11-21T13:45:02, 2026-11-21 13:45      in this machine's time zone, or with Z or +01:00
    13:45, 13:45:02                            of today
    10m ago, -10m, 10m, now                    before now

A kind is named `training.resumed`; `training` names all of its area, `resumed` is enough too.

For an unknown command it suggests those nearest in meaning, else in spelling.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from services.console.trouble import INTERRUPTED, PIPE_CLOSED, Trouble
from shared.bus.subjects import BY_TAG, DEFAULT_NAMESPACE, LONGEST_NAME, is_name
from shared.runtime.config import BadSettings

WIDTH = 80
HELP_COLUMN = 26
"""The help texts begin at this column, or before it if all names are short."""
NATS_URL = "nats://127.0.0.1:4222"
CANCEL = "cancel"
"""The command that takes only jobs that are not over."""

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]


class Arguments(SimpleNamespace):
    """The values of a command's arguments and options, by name."""


# ---------------------------------------------------------------- parse values


SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_name(text: str) -> str:
    if not is_name(text):
        from services.allocator.admission.validation import NAME

        raise ValueError(f"{text!r} is not {NAME}, at most {LONGEST_NAME} characters")
    return text


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `90s`, `10m`, `2h` or `1.5d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not found:
        raise ValueError(f"{text!r} is not a duration such as 90s, 10m, 2h or 1d")
    return float(found[1]) * SECONDS[found[2] or "s"]


def at_least_zero(text: str) -> float:
    return _parse_number(text, lambda value: 0 <= value < float("inf"), "a number of at least 0")


def above_zero(text: str) -> float:
    return _parse_number(text, lambda value: 0 < value < float("inf"), "a number above 0")


def _parse_number(text: str, is_valid: Callable[[float], bool], description: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not is_valid(value):
        raise ValueError(f"{text!r} is not {description}")
    return value


def parse_policies(text: str) -> tuple[str, ...]:
    """Parse names of policies with commas between them. Import the custom ones."""
    from services.allocator.custom_policies import register_policies

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    try:
        register_policies(names or (text,))
    except BadSettings as bad:
        raise ValueError(str(bad)) from bad
    return names


def parse_policy(text: str) -> str:
    return parse_policies(text)[0]


Moment = Callable[[float], float]
"""A function from now to a point in time; both are seconds since 1970."""
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
MOMENT_FORMATS = "a time (2026-11-21T13:45:02, 13:45) or an age (10m ago, -10m)"


def parse_moment(text: str, zone: tzinfo | None = None) -> Moment:
    """Parse a point in time. `zone`: the time zone of texts without one; None: this machine's."""
    words = text.strip()
    if words == "now":
        return lambda now: now
    return _parse_age(words) or _parse_clock(words, zone) or _parse_date(words, zone)


def _parse_age(words: str) -> Moment | None:
    try:
        seconds = parse_duration(words.removesuffix("ago").strip().removeprefix("-"))
    except ValueError:
        return None
    return lambda now: now - seconds


def _parse_clock(words: str, zone: tzinfo | None) -> Moment | None:
    """Parse a time of today, in this zone."""
    if not CLOCK.fullmatch(words):
        return None
    hour, minute, second = ([*map(int, words.split(":")), 0])[:3]
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{words!r} is not a time of day")

    def today(now: float) -> float:
        day = datetime.fromtimestamp(now, zone)
        return day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()

    return today


def _parse_date(words: str, zone: tzinfo | None) -> Moment:
    try:
        at = datetime.fromisoformat(words)
    except ValueError:
        raise ValueError(f"{words!r} is not {MOMENT_FORMATS}") from None
    at_s = (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()
    return lambda now: at_s


def parse_param(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE` of a job's parameter. The value is read as in a job's file: a number, true
    or false, null, a text; a list in brackets and an object in braces.
    """
    name, equals, written = text.partition("=")
    if not equals or not name.isidentifier() or not name.isascii():
        raise ValueError(f"{text!r} is not NAME=VALUE with the name of a Python argument")
    return name, _yaml_value(written)


def _yaml_value(written: str) -> Any:
    """Return a value as YAML reads it; a text if it is none, or many lines or fields of YAML."""
    import yaml

    from shared.documents import load_yaml

    try:
        value = load_yaml(written) if written.strip() else written
    except yaml.YAMLError:
        return written
    is_part = isinstance(value, dict | list)
    return written if is_part and not written.lstrip().startswith(("{", "[")) else value


def _tags_by_name() -> dict[str, tuple[str, ...]]:
    by_area: dict[str, tuple[str, ...]] = {}
    by_last_word: dict[str, tuple[str, ...]] = {}
    by_tag: dict[str, tuple[str, ...]] = {}
    for tag in BY_TAG:
        area, _, last_word = tag.partition(".")
        by_area[area] = (*by_area.get(area, ()), tag)
        by_last_word[last_word] = (*by_last_word.get(last_word, ()), tag)
        by_tag[tag] = (tag,)
    return by_last_word | by_area | by_tag


def _kind_words() -> tuple[str, ...]:
    words = []
    for tag in BY_TAG:
        area = tag.partition(".")[0]
        if area not in words:
            words.append(area)
        words.append(tag)
    return tuple(words)


TAGS_BY_NAME = _tags_by_name()
"""The tags that a word names: tags with this second word (`changed`: of a job and of capacity),
with this first word, or both.
"""
KIND_WORDS = _kind_words()
"""The words that name kinds without ambiguity: each area, and each complete tag."""


def parse_kinds(text: str) -> tuple[str, ...]:
    """Return the tags of kinds, separated by commas. Raise `ValueError` with all known tags."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in TAGS_BY_NAME]
    if unknown or not named:
        raise ValueError(f"{', '.join(unknown) or text!r}: no such kind; use {', '.join(BY_TAG)}")
    tags: list[str] = []
    for name in named:
        tags.extend(TAGS_BY_NAME[name])
    return tuple(dict.fromkeys(tags))


# ---------------------------------------------------------------- a command


class Command(click.Command):
    """A command whose callback takes `Arguments` and returns an exit code.

    `examples` are shown at the end of its help. `exclusive` names options of which at most one may
    be given.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str], exclusive: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.exclusive = exclusive

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        chosen = []
        for name in self.exclusive:
            if ctx.params.get(name):
                chosen.append(f"--{name.replace('_', '-')}")
        if len(chosen) > 1 and not ctx.resilient_parsing:
            names = " and ".join(chosen)
            raise click.UsageError(f"{names} exclude each other: give one of them", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> int:
        """Run the command and return its exit code (`trouble.CODES`).

        `ctx.obj`, if there is one, is called first; it prepares the process.
        """
        if ctx.obj:
            ctx.obj()
        assert self.callback is not None
        return exit_code(self.callback, str(self.name), Arguments(**ctx.params))

    def get_usage(self, ctx: click.Context) -> str:
        arguments = [p.make_metavar(ctx) for p in self.params if isinstance(p, click.Argument)]
        return " ".join(["usage:", ctx.command_path, "[options]", *arguments])

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [p for p in self.params if isinstance(p, click.Argument)]
        parts = [self.get_usage(ctx)]
        if self.help:
            parts.append(self.help)
        if arguments:
            parts.append("\n".join(["arguments:", *_format_rows(ctx, arguments)]))
        parts.append("\n".join(["options:", *_format_rows(ctx, _options_on(self, ""))]))
        parts.append("\n".join(["for example:", *[f"  {line}" for line in self.examples]]))
        formatter.write("\n\n".join(parts))


def command(
    examples: Sequence[str], exclusive: Sequence[str] = (), **settings: Any
) -> Callable[[Any], Command]:
    """Make a command of the function `run(args)` of a module of this package."""
    return click.command(cls=Command, examples=examples, exclusive=exclusive, **settings)


def exit_code(run: Callable[[Arguments], int], name: str, args: Arguments) -> int:
    """Run a command and return its exit code. Print the error if it could not be done."""
    try:
        code = int(run(args))
        sys.stdout.flush()
        return code
    except Trouble as trouble:
        print(f"weir {name}: {trouble}", file=sys.stderr)
        return trouble.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


# ---------------------------------------------------------------- help


class Option(click.Option):
    """An option that is shown on the page `--help-<page>`; on `--help` if `page` is empty."""

    def __init__(self, *args: Any, page: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.page = page


def option(*names: str, **settings: Any) -> Decorator[Any]:
    return click.option(*names, cls=Option, **settings)


def flag(*names: str, **settings: Any) -> Decorator[Any]:
    return option(*names, is_flag=True, **settings)


def help_page(name: str, title: str, text: str, help: str) -> Decorator[Any]:
    """Add `--help-<name>`, which prints a text and the options with `page=name`, and ends."""

    def show(ctx: click.Context, _: click.Parameter, chosen: bool) -> None:
        if chosen and not ctx.resilient_parsing:
            about = textwrap.indent(text.rstrip("\n"), "  ", lambda _: True)
            parts = [ctx.command.get_usage(ctx), f"{title}:\n{about}"]
            rows = _format_rows(ctx, _options_on(ctx.command, name))
            if rows:
                parts.append("\n".join(rows))
            click.echo("\n\n".join(parts))
            ctx.exit()

    settings: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": show}
    return flag(f"--help-{name}", help=help, **settings)


def _options_on(shown: click.Command, page: str) -> list[Option]:
    return [p for p in shown.params if isinstance(p, Option) and p.page == page]


def _format_rows(ctx: click.Context, parameters: Iterable[click.Parameter]) -> list[str]:
    """Return two columns: names with metavars, help. A hyphenated name is never broken."""
    records = list(filter(None, [each.get_help_record(ctx) for each in parameters]))
    if not records:
        return []
    column = min(HELP_COLUMN, max(len(names) for names, _ in records) + 4)
    rows = []
    for names, text in records:
        lines = textwrap.wrap(text, WIDTH - column, break_on_hyphens=False)
        if len(names) + 4 > column:
            rows.append(f"  {names}")
        elif lines:
            rows.append(f"  {names}".ljust(column) + lines.pop(0))
        rows += [" " * column + line for line in lines]
    return rows


# ---------------------------------------------------------------- types of values


class Value(click.ParamType[Any]):
    """A value that a function reads from text; the function raises ValueError with the reason.

    `offers`: the words to which a shell completes it.
    """

    def __init__(
        self, read: Callable[[str], Any], name: str = "text", offers: Iterable[str] = ()
    ) -> None:
        self.read = read
        self.name = name
        self.offers = tuple(offers)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        words = self.completion_words(ctx, incomplete)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    def completion_words(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        return self.offers


class NameOnBus(Value):
    """The name of a job or a namespace. A shell completes it to the names that the bus knows.

    The group of all commands looks them up (`services/__main__.py`).
    """

    def completion_words(self, ctx: click.Context, incomplete: str) -> Iterable[str]:
        weir: Any = ctx.find_root().command
        if self.name == "namespace":
            return list(weir.known_names("namespaces", None, only_open=False))
        namespace = ctx.params.get("namespace") or default_namespace(ctx.command)
        only_open = ctx.command.name == CANCEL
        return list(weir.known_names("jobs", namespace, only_open))


def default_namespace(command: click.Command) -> str | None:
    """Return the namespace of a command without `--namespace`; None means all of them."""
    for parameter in command.params:
        if parameter.name == "namespace" and isinstance(parameter.default, str):
            return parameter.default
    return None


JOB_NAME = NameOnBus(parse_name, "job")
NAMESPACE = NameOnBus(parse_name, "namespace")
DURATION = Value(parse_duration, "duration")
MOMENT = Value(parse_moment, "time")
AT_LEAST_ZERO = Value(at_least_zero, "number")
ABOVE_ZERO = Value(above_zero, "number")
PARAM = Value(parse_param, "parameter")
FILE = click.Path(path_type=Path, readable=False)
CHECKPOINTS = Path(".weir/checkpoints")
"""The folder of all jobs' checkpoints under `weir up`, in the folder of its start."""


# ---------------------------------------------------------------- options of several commands


def combine_options(*decorators: Decorator[Any]) -> Decorator[Any]:
    """Combine the decorators of several options into one, in the order of their help."""

    def decorate(function: Any) -> Any:
        for each in reversed(decorators):
            function = each(function)
        return function

    return decorate


def argument(name: str, **settings: Any) -> Decorator[Any]:
    return click.argument(name, **settings)


def namespace_option(default: str | None = DEFAULT_NAMESPACE) -> Decorator[Any]:
    return option(
        "-n",
        "--namespace",
        type=NAMESPACE,
        default=default,
        metavar="NS",
        help=f"the job's namespace (default: {default or 'all'})",
    )


def timeout_option(default_s: float, help: str) -> Decorator[Any]:
    return option(
        "--timeout",
        type=DURATION,
        default=default_s,
        metavar="TIME",
        help=f"{help} (default: {default_s:g}s)",
    )


nats_option = option(
    "--nats",
    metavar="URL",
    help=f"the address of NATS (default: WEIR_NATS_URL, `weir up` here, else {NATS_URL})",
)
param_option = option(
    "--param",
    "params",
    type=PARAM,
    multiple=True,
    metavar="NAME=VALUE",
    help="a value of `params:`; may be repeated",
)
job_argument = argument("job", type=JOB_NAME, metavar="JOB", help="the job's name")
json_option = flag("--json", help="one JSON object")


def job_request_options(default_s: float, timeout_help: str) -> Decorator[Any]:
    """Return the options of a command that sends a request about one job and waits for an answer."""
    return combine_options(
        nats_option, namespace_option(), job_argument, timeout_option(default_s, timeout_help)
    )


MEANT: dict[tuple[str, ...], tuple[str, ...]] = {
    ("start", "run"): ("up", "submit"),
    ("init", "setup", "install", "serve", "server", "local", "cluster"): ("up",),
    ("create", "apply", "train", "launch", "add", "new"): ("submit",),
    ("status", "ps", "stat", "info"): ("jobs", "top"),
    ("ls", "list", "get", "job", "queue"): ("jobs",),
    ("nodes", "watch", "monitor", "live", "pods"): ("top",),
    ("show", "describe", "inspect", "scale", "resize"): ("explain",),
    ("edit", "set", "update", "patch", "renice"): ("change",),
    ("pause", "hold", "halt", "freeze"): ("suspend",),
    ("continue", "unpause", "release", "restart"): ("resume",),
    ("stop", "delete", "del", "rm", "remove", "kill", "abort", "end"): ("cancel",),
    ("dashboard", "dash", "ui", "web", "gui", "browser", "open"): ("page", "top"),
    ("check", "lint", "test", "try", "validate", "verify"): ("doctor",),
    ("history", "messages", "tail", "follow", "facts"): ("events",),
    ("log", "output", "print", "stdout"): ("logs",),
    ("result", "results", "summary", "metrics", "plot"): ("report",),
    ("what-if", "whatif", "replay", "sim", "bench", "policy", "policies"): ("simulate",),
    ("cause", "trace", "reason"): ("why", "explain"),
    ("auth", "login", "keys", "creds", "user"): ("credentials",),
    ("errors", "failed", "dlq"): ("dead-letters",),
    ("bus", "nats", "topics", "subjects"): ("streams",),
    ("schema", "api", "docs"): ("asyncapi",),
}
"""Words of other tools, and the commands of Weir that do the same."""
BY_WORD = {word: names for words, names in MEANT.items() for word in words}
NEAR = 0.6  # of difflib's ratio


def suggest_commands(word: str, known: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the commands that `word` may mean, the likeliest first. `known`: the help
    text of each command, by name.
    """
    small = word.lower()
    if small in known:
        return (small,)
    if small in BY_WORD:
        return BY_WORD[small]
    longer = tuple(name for name in known if small and name.startswith(small))
    return longer or tuple(difflib.get_close_matches(small, known, n=1, cutoff=NEAR))


def describe_unknown_command(words: Sequence[str], known: Mapping[str, str]) -> str:
    """Return the error for a command line that begins with an unknown command."""
    first, *rest = words
    if first == "help":
        command = f" {rest[0]}" if rest and rest[0] in known else ""
        return f"help is `weir{command} --help`"
    names = suggest_commands(first, known)
    if not names:
        return f"there is no command {first!r}; `weir --help` lists them"
    width = max(map(len, names))
    lines = [f"  weir {name:<{width}}  {known[name]}" for name in names]
    return "\n".join([f"there is no command {first!r}; did you mean", *lines])
