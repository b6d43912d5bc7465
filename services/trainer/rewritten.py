"""Lines of functions that TensorFlow has rewritten, as their author wrote them; without importing
it.

What is traced runs as text of TensorFlow's own making, from a file of its own. An error of such a
function says itself where it was written; a thread that stands in one does not, nor does what is no
`Exception` (`sys.exit()`). There TensorFlow's maps are asked, of which each rewritten function has
one; where they have nothing, a line stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from traceback import FrameSummary
from typing import Any

from services.trainer.orders import GENERATED

AUTOGRAPH = "tensorflow.python.autograph.impl.api"


def as_written(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """The same, each in the file where its line was written."""
    found = list(frames)
    if not any(GENERATED in frame.filename for frame in found):
        return found
    origins = {place: origin for each in _maps() for place, origin in each.items()}
    return [_written(frame, origins) for frame in found]


def _written(frame: FrameSummary, origins: Mapping[Any, Any]) -> FrameSummary:
    origin = origins.get((frame.filename, frame.lineno)) if GENERATED in frame.filename else None
    if origin is None:
        return frame
    return FrameSummary(
        origin.loc.filename, origin.loc.lineno, origin.function_name, line=origin.source_code_line
    )


def _maps() -> Iterator[Mapping[Any, Any]]:
    """Of all functions that were rewritten in this process."""
    cache = getattr(getattr(sys.modules.get(AUTOGRAPH), "_TRANSPILER", None), "_cache", None)
    for made in list(getattr(cache, "_cache", {}).values()):
        yield from (each.source_map for each in list(made.values()))
