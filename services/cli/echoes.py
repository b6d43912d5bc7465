"""What TensorFlow repeats of a program's failure while it travels between tasks: pure.

It stands a dozen times in a log, in the words of gRPC and between Weir's marks
(`trainer/cause.py`). What is between the marks is shown the first time, and nothing else of it.
Such an echo lasts until somebody else is known to speak.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from services.trainer import cause

BEGINS, ENDS = cause.BEGINS.encode(), cause.ENDS.encode()
ECHO = re.compile(
    rb"ERROR:tensorflow: /job:.* when processing closure|E\d{4} .* Truncated error message: "
)
OTHERS = re.compile(rb'\{"|[IWEF]\d{4} |(ERROR|WARNING|INFO):tensorflow:')
LAST = re.compile(rb":UNKNOWN:Error received from peer .*grpc_status:")
"""The same once more, on one line."""
MORE = re.compile(
    rb"\t \[\[.*\]\]|Additional GRPC error information | +\(\d+\) [A-Z_]+: |0 (successful op|derived err)"
)
"""Behind that: what else had waited for what failed, and from whom that was heard."""


def once(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each line, or what is left of it without the marks; and whether it is to be shown."""
    told: set[bytes] = set()
    echoes = shows = ended = False
    for line in lines:
        begins, last = ECHO.match(line) or BEGINS in line, LAST.match(line)
        ended = ended and bool(last or MORE.match(line))
        if begins or OTHERS.match(line):
            echoes, shows = bool(begins), False
        says = line.rpartition(BEGINS)[2]
        if says != line and not last and says not in told:
            told.add(says)
            shows = True
        text, mark, _ = says.partition(ENDS)
        shown = not (echoes or ended) or (shows and not last)
        yield (line if not echoes else text + b"\n" * bool(mark)), shown
        shows = shows and not mark
        ended, echoes = ended or bool(echoes and last), echoes and not last
