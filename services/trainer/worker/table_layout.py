"""The division of an embedding table by rows among parameter servers.

The rows of a table form a fixed number of parts, which depends on the table alone: `PARTS`, or one
for each row of a table with fewer. Each ps holds a run of consecutive parts. A part never moves
partially, so initial values that are drawn for each part do not depend on the number of ps.

With n ps the fullest one has at most one part more than the mean: 1 + n / PARTS of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from services.trainer.table_files import PARTS


def slice_text(shape: Sequence[int], rows: range) -> str:
    """Return rows of a tensor as TensorFlow writes a slice: "1000 8 250,250:-"."""
    whole = " ".join(map(str, shape))
    rest = ":-" * (len(shape) - 1)
    return f"{whole} {rows.start},{len(rows)}{rest}"


class TableLayout(NamedTuple):
    """The parts of a table with this number of rows. `most_parts`: the number of parts, unless
    there are fewer rows.
    """

    rows: int
    most_parts: int = PARTS

    @property
    def parts(self) -> int:
        return min(self.most_parts, self.rows)

    def first_row(self, part: int) -> int:
        """Return the first row of a part; that behind the last part is the number of rows."""
        return part * self.rows // self.parts

    def parts_of(self, ps: int, count: int) -> range:
        """Return the parts on a ps, of `count` ps."""
        return range(ps * self.parts // count, (ps + 1) * self.parts // count)

    def rows_of(self, ps: int, count: int) -> range:
        """Return the rows on a ps, of `count` ps. It may be none."""
        parts = self.parts_of(ps, count)
        return range(self.first_row(parts.start), self.first_row(parts.stop))

    def blocks_of(self, rows: range, parts: int) -> list[range]:
        """Return `rows` divided wherever a block of this many parts of the table begins.

        The blocks do not depend on the number of ps, but for those at the ends of `rows`.
        """
        starts = [self.first_row(part) for part in range(0, self.parts, parts)]
        inner = [row for row in starts if rows.start < row < rows.stop]
        bounds = [rows.start, *inner, rows.stop]
        return [range(first, stop) for first, stop in pairwise(bounds)]
