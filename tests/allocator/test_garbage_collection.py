"""Tests of the garbage collector: it runs seldom, and reference cycles are freed in the end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from services.allocator.service import NEW_CONTAINERS_PER_COLLECTION, collect_garbage_seldom


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Cycle:
    def __init__(self) -> None:
        self.own = self


def looks_while_making(containers: int) -> int:
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    kept = [[number] for number in range(containers)]
    assert len(kept) == containers
    return int(gc.get_stats()[0]["collections"]) - before


def test_garbage_collection_does_not_run_during_a_decision():
    assert looks_while_making(30_000) > 10

    collect_garbage_seldom()

    assert looks_while_making(30_000) == 0


def test_reference_cycles_are_freed_between_decisions():
    collect_garbage_seldom()
    gc.collect()
    gone = weakref.ref(Cycle())
    assert gone() is not None

    kept = [[number] for number in range(NEW_CONTAINERS_PER_COLLECTION + 1)]

    assert kept and gone() is None
