"""Completion for fish: pure. One `complete` a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.cli.shells.vocabulary import Command, Option

HEAD = """\
# weir: completion for fish. Try: weir completion fish | source
complete -c weir -f
"""


def script(commands: Sequence[Command]) -> str:
    return HEAD + "".join(f"{line}\n" for command in commands for line in _lines(command))


def _lines(command: Command) -> Iterator[str]:
    yield f"complete -c weir -n __fish_use_subcommand -a {command.name} -d {_quoted(command.said)}"
    there = f"complete -c weir -n '__fish_seen_subcommand_from {command.name}'"
    for option in command.options:
        yield f"{there} {_option(option)}"
    if command.words:
        yield f"{there} -a {_quoted(' '.join(command.words))}"
    if command.file:
        yield f"{there} -F"


def _option(option: Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    value = f" -x -a {_quoted(' '.join(option.values))}" if option.values else " -r -F" if option.file else " -x"
    return f"{names}{value if option.takes else ''} -d {_quoted(option.said)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
