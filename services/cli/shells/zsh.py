"""Completion for zsh: pure. Each command's words are given to zsh's own `_arguments`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.cli.shells.vocabulary import Command, Option

HEAD = """\
#compdef weir
# weir: completion for zsh. Try: source <(weir completion zsh)
_weir_names() {
    compadd -- ${(f)"$(weir completion zsh --names "$1" "${words[@]}" 2>/dev/null)"}
}
_weir() {
    local -a commands=(
"""
MIDDLE = """\
    )
    if (( CURRENT == 2 )); then
        _describe 'command' commands
        return
    fi
    local chosen="${words[2]}"
    shift words
    (( CURRENT -= 1 ))
    case "$chosen" in
"""
TAIL = """\
    esac
}
if [[ "${funcstack[1]}" == _weir ]]; then
    _weir "$@"
else
    compdef _weir weir
fi
"""
"""The end: zsh has loaded the file because it completes; or somebody has sourced it."""


def script(commands: Sequence[Command]) -> str:
    listed = "".join(
        f"        {_quote_zsh(f'{command.name}:{command.said}')}\n" for command in commands
    )
    return HEAD + listed + MIDDLE + "".join(_case(command) for command in commands) + TAIL


def _case(command: Command) -> str:
    wanted = "".join(f" \\\n                {_quote_zsh(spec)}" for spec in _specs(command))
    return f"        {command.name}) _arguments{wanted} ;;\n"


def _specs(command: Command) -> Iterator[str]:
    for option in command.options:
        for name in option.names:
            yield f"{name}[{_escape_description(option.said)}]{_value(option)}"
    yield f"*:{command.name}:{_words(command.words, command.file, command.asks)}"


def _value(option: Option) -> str:
    return (
        f":{_escape_description(option.names[-1].lstrip('-'))}:{_words(option.values, option.file, option.asks)}"
        if option.takes
        else ""
    )


def _words(values: Sequence[str], file: bool, asks: str) -> str:
    if asks:
        return f" _weir_names {asks}"
    return f"({' '.join(values)})" if values else "_files" if file else " "


def _escape_description(text: str) -> str:
    """Without what zsh would take for the end of a description."""
    return "".join(" " if letter in "[]:\\" else letter for letter in text)


def _quote_zsh(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"
