"""Suggest commands for an unknown word: the nearest in meaning, else in spelling. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

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
"""The words of other tools, and the commands of Weir that do the same."""
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
