"""Completion for fish: pure. One `complete` a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.cli.shells.vocabulary import Command, Option

HEAD = """\
# weir: completion for fish. Try: weir completion fish | source
function _weir_names
    weir completion fish --names $argv (commandline -opc)[2..] 2>/dev/null
end
complete -c weir -f
"""


def script(commands: Sequence[Command]) -> str:
    return HEAD + "".join(f"{line}\n" for command in commands for line in _lines(command))


def _lines(command: Command) -> Iterator[str]:
    yield f"complete -c weir -n __fish_use_subcommand -a {command.name} -d {_quote_fish(command.said)}"
    there = f"complete -c weir -n '__fish_seen_subcommand_from {command.name}'"
    for option in command.options:
        yield f"{there} {_option(option)}"
    if command.words or command.asks:
        yield f"{there} -a {_values(command.words, command.asks)}"
    if command.file:
        yield f"{there} -F"


def _option(option: Option) -> str:
    names = " ".join(
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
    )
    values = f" -x -a {_values(option.values, option.asks)}" if option.values or option.asks else ""
    value = values or (" -r -F" if option.file else " -x")
    return f"{names}{value if option.takes else ''} -d {_quote_fish(option.said)}"


def _values(words: Sequence[str], asks: str) -> str:
    return _quote_fish(f"(_weir_names {asks})" if asks else " ".join(words))


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
