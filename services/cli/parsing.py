"""How `weir` reads its words, and shows what it understands: help that fits a screen, and errors
with a way out.

A usage line names what must be given; what may be given stands below it, a line each as far as that
goes. What few people need has a page of its own (`apart`).
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

WIDTH, COLUMN = 80, 26
NAMED = "[options]"


class Layout(argparse.RawDescriptionHelpFormatter):
    """Who reads help has found `--help`, so it has no line there."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=COLUMN, width=WIDTH)

    def add_argument(self, action: argparse.Action) -> None:
        if not isinstance(action, argparse._HelpAction):
            super().add_argument(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """A name with a hyphen, such as a policy's, stays in one piece."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """`examples`: shown at the end, as one would type them."""

    def __init__(self, prog: str, description: str, examples: Sequence[str] = ()) -> None:
        shown = (
            "\n".join(["for example:", *(f"  {example}" for example in examples)])
            if examples
            else None
        )
        super().__init__(prog=prog, description=description, epilog=shown, formatter_class=Layout)

    def format_usage(self) -> str:
        return f"usage: {' '.join([self.prog, *_words(self)])}\n"

    def format_help(self) -> str:
        """As argparse has it, with our usage, and without what has a page of its own."""
        elsewhere = [action.group for action in self._actions if isinstance(action, ShowPage)]
        groups = [group for group in self._action_groups if group not in elsewhere]
        return _format_help(self, self.description, groups, self.epilog)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}{self.prog}: {message}\nTry `{self.prog} --help`.\n")


def apart(parser: argparse.ArgumentParser, name: str, title: str, about: str, said: str) -> Any:
    """A group of options that `--help` leaves to `--help-<name>`, of which it says what is
    `said`.
    """
    group = parser.add_argument_group(title, about)
    parser.add_argument(f"--help-{name}", action=ShowPage, group=group, help=said)
    return group


class ShowPage(argparse.Action):
    """Print one page of help, and end."""

    def __init__(self, option_strings: Sequence[str], dest: str, group: Any, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)
        self.group = group

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(self.page(parser), end="")
        parser.exit()

    def page(self, parser: argparse.ArgumentParser) -> str:
        return _format_help(parser, None, [self.group], None)


# ---------------------------------------------------------------- one page


def _format_help(
    parser: argparse.ArgumentParser, about: str | None, groups: Iterable[Any], end: str | None
) -> str:
    layout = Layout(parser.prog)
    layout.add_usage(" ".join(["%(prog)s", *_words(parser)]), (), ())
    layout.add_text(about)
    for group in groups:
        layout.start_section(group.title)
        layout.add_text(group.description)
        layout.add_arguments(group._group_actions)
        layout.end_section()
    layout.add_text(end)
    return layout.format_help()


def _words(parser: argparse.ArgumentParser) -> Iterable[str]:
    yield NAMED
    for action in parser._actions:
        if not action.option_strings:
            yield _placeholder(action)


def _placeholder(action: argparse.Action) -> str:
    name = action.metavar or (
        f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest
    )
    return f"[{name}]" if action.nargs in ("?", "*") else str(name)


# ---------------------------------------------------------------- numbers


def at_least_zero(text: str) -> float:
    """Read an argument."""
    return _number(text, lambda value: 0 <= value < float("inf"), "a number of at least 0")


def above_zero(text: str) -> float:
    """Read an argument."""
    return _number(text, lambda value: 0 < value < float("inf"), "a number above 0")


def _number(text: str, holds: Callable[[float], bool], what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not holds(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
