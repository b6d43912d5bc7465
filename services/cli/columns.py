"""Columns in front of a sentence, as one line; at a terminal the sentence goes on below its own
beginning. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from shared.text import single_line

Cell = tuple[str, int, str]
"""Text, width in columns, style. What is wider pushes what follows to the right."""
LEAST, INDENT = 24, 6
"""With fewer columns than these beside its cells a sentence stands below them, so far from the
left.
"""


def beside(cells: Sequence[Cell], sentence: Text, width: int | None) -> Text:
    """`width` of the terminal; None: one line, however long."""
    front = Text.assemble(
        *((f"{_padded(single_line(text), wide)} ", style) for text, wide, style in cells)
    )
    if width is None or sentence.cell_len <= width - front.cell_len:
        return Text.assemble(front, sentence)
    if width - front.cell_len >= LEAST:
        return Text.assemble(front, _folded(sentence, width, front.cell_len))
    front.rstrip()
    return Text.assemble(front, "\n", " " * INDENT, _folded(sentence, width, INDENT))


def _folded(sentence: Text, width: int, begins: int) -> Text:
    lines = sentence.wrap(RULER, max(width - begins, LEAST))
    for line in lines:
        line.rstrip()
    return Text(f"\n{' ' * begins}").join(lines)


RULER = Console(width=1)
"""Folding asks for one; the width is given each time."""


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
