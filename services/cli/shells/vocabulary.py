"""What may be typed behind `weir`: pure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Option(NamedTuple):
    """`names`: `-f`, `--follow`. `values`: what may stand behind it, if that is a choice; `file`: a
    path does; `asks`: names that are to be asked for.
    """

    names: tuple[str, ...]
    said: str
    takes: bool
    values: tuple[str, ...]
    file: bool
    asks: str = ""


class Command(NamedTuple):
    """`words`: choices for what has no option in front; `file`: a path may stand there; `asks`: one
    of these names.
    """

    name: str
    said: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    file: bool
    asks: str = ""


def vocabulary(parsers: Mapping[str, argparse.ArgumentParser]) -> tuple[Command, ...]:
    return tuple(_command(name, parser) for name, parser in parsers.items())


def _command(name: str, parser: argparse.ArgumentParser) -> Command:
    places = [action for action in parser._actions if not action.option_strings]
    return Command(
        name,
        parser.description or "",
        tuple(_option(action) for action in parser._actions if action.option_strings),
        tuple(str(word) for action in places for word in action.choices or ()),
        any(action.type is Path for action in places),
        next(filter(None, map(_asks, places)), ""),
    )


def _option(action: argparse.Action) -> Option:
    values = tuple(map(str, action.choices or getattr(action.type, "offers", None) or ()))
    said = " ".join((action.help or "").split()).replace("%%", "%")
    return Option(
        tuple(action.option_strings),
        said,
        action.nargs != 0,
        values,
        action.type is Path,
        _asks(action),
    )


def _asks(action: argparse.Action) -> str:
    return str(getattr(action.type, "asks", ""))
