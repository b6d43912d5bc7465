"""How `weir` reads its words, and shows what it understands: help that fits a terminal, and errors with a way out.

A usage line names what must be given; what may be given stands below it, a line each as far as that goes.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn

WIDTH, COLUMN = 80, 26
NAMED = "[options]"


class Layout(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=COLUMN, width=WIDTH)


class Parser(argparse.ArgumentParser):
    """`examples`: shown at the end, as one would type them."""

    def __init__(self, prog: str, description: str, examples: Sequence[str] = ()) -> None:
        shown = "\n".join(["for example:", *(f"  {example}" for example in examples)]) if examples else None
        super().__init__(prog=prog, description=description, epilog=shown, formatter_class=Layout)

    def format_usage(self) -> str:
        return f"usage: {' '.join([self.prog, *self._words()])}\n"

    def format_help(self) -> str:
        """As argparse has it, with our usage."""
        self.usage = " ".join(["%(prog)s", *self._words()])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}{self.prog}: {message}\nTry `{self.prog} --help`.\n")

    def _words(self) -> Iterable[str]:
        yield NAMED
        for action in self._actions:
            if not action.option_strings:
                yield _placeholder(action)


def _placeholder(action: argparse.Action) -> str:
    name = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest)
    return f"[{name}]" if action.nargs in ("?", "*") else str(name)


def likeliest(word: str, known: Iterable[str]) -> str:
    """What to tell who typed a word that is none of those."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"there is no command {word!r}" + (
        f"; did you mean `weir {near[0]}`?" if near else "; `weir --help` lists them"
    )
