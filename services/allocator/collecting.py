"""Make the garbage collector look for cycles seldom, so that it hardly ever interrupts a decision.

Counting references frees nearly all that the allocator makes: its state never changes, and so has
no cycles; only errors and tasks of the event loop make some. Python looks after every 700 new
containers, which a decision about hundreds of jobs makes forty times over, and finds nothing.
"""

from __future__ import annotations

import gc

CONTAINERS = 100_000
"""New ones between two looks: some ten megabytes."""


def collect_seldom() -> None:
    """Change the threshold in this process, from now on."""
    gc.set_threshold(CONTAINERS, *gc.get_threshold()[1:])
