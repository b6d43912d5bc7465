"""When the garbage collector looks for cycles: seldom, so that it hardly ever interrupts a decision.

Counting references frees nearly all that the allocator makes: what it remembers never changes, and so has no cycles;
only errors and tasks of the event loop make some. Python looks after every 700 containers that are new, which a
decision about hundreds of jobs makes forty times over, and finds nothing.
"""

from __future__ import annotations

import gc

CONTAINERS = 100_000
"""So many new ones, some ten megabytes, between two looks."""


def collect_seldom() -> None:
    """In this process, from now on."""
    gc.set_threshold(CONTAINERS, *gc.get_threshold()[1:])
