"""Completion for bash: pure.

What may be typed is decided by the word in front (an option's values), else by the command. Paths
are bash's own affair: where a path may stand, nothing else fits, and bash falls back to names of
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.cli.shells.vocabulary import Command, Option

HEAD = """\
# weir: completion for bash. Try: source <(weir completion bash)
_weir_names() {
    "${COMP_WORDS[0]}" completion bash --names "$1" "${COMP_WORDS[@]:1}" 2>/dev/null
}
_weir() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" options="" asks=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "%s --help" -- "$word"))
        return
    fi
    case "${COMP_WORDS[1]} $before" in
"""
MIDDLE = """\
    esac
    case "${COMP_WORDS[1]}" in
"""
TAIL = """\
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) COMPREPLY=($(compgen -W "$words ${asks:+$(_weir_names "$asks")}" -- "$word")) ;;
    esac
}
complete -o bashdefault -o default -F _weir weir
"""


def script(commands: Sequence[Command]) -> str:
    behind = "".join(f"        {line}\n" for command in commands for line in _behind(command))
    inside = "".join(f"        {_inside(command)}\n" for command in commands)
    return HEAD % " ".join(command.name for command in commands) + behind + MIDDLE + inside + TAIL


def _behind(command: Command) -> Iterator[str]:
    """What may stand behind each option that takes something."""
    for option in command.options:
        if option.takes:
            pattern = "|".join(f'"{command.name} {name}"' for name in option.names)
            values = f"$(_weir_names {option.asks})" if option.asks else " ".join(option.values)
            yield f'{pattern}) COMPREPLY=($(compgen -W "{values}" -- "$word")); return ;;'


def _inside(command: Command) -> str:
    asks = f' asks="{command.asks}"' if command.asks else ""
    return f'{command.name}) words="{" ".join(command.words)}" options="{" ".join(_names(command.options))}"{asks} ;;'


def _names(options: Sequence[Option]) -> list[str]:
    return [name for option in options for name in option.names]
