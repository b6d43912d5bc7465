"""Tests of the thread that writes bases."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from services.trainer.table_files import TableFile, path_in_job
from services.trainer.worker.checkpoint_files import seal_checkpoint
from services.trainer.worker.table_base import FIRST_WAIT_S, BaseWriter


class Tables:
    """Tables whose base is written when the test allows it. It fails if `is_full`. They adopt it
    if their files are still those before it.
    """

    def __init__(self, is_full: bool = True) -> None:
        self.files: tuple[TableFile, ...] = ()
        self.needs_base = True
        self.paths: list[str] = []
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self._is_full = is_full

    def write_base(self, path: str) -> tuple[TableFile, ...]:
        self.paths.append(path)
        before = self.files
        self.has_begun.set()
        assert self.may_end.wait(60)
        if self._is_full:
            raise tf.errors.ResourceExhaustedError(None, None, "the disk is full")
        tf.train.Checkpoint(rows=tf.Variable([1.0])).write(path)
        return before

    def adopt_base(self, path: str, digest: str, before: tuple[TableFile, ...]) -> bool:
        if self.files != before:
            return False
        self.files = (TableFile(path_in_job(path), digest),)
        return True


def fail(step: int, path: str, error: tf.errors.OpError) -> None:
    raise AssertionError(f"{path} was not written: {error}")


def test_the_first_base_blocks_saves_until_it_has_failed_and_is_tried_again_ever_later(
    tmp_path: Path,
) -> None:
    tables: Any = Tables()
    failed: list[Any] = []
    now_s = 1000.0
    bases = BaseWriter(tables, str(tmp_path), lambda *each: failed.append(each), lambda: now_s)
    assert bases.wait() and not bases.blocks_saves

    bases.start_if_needed(7)
    bases.start_if_needed(8)
    assert bases.blocks_saves and not bases.wait(0.01)
    tables.may_end.set()
    assert bases.wait(60) and not bases.blocks_saves
    now_s += FIRST_WAIT_S - 1
    bases.start_if_needed(8)
    now_s += 1
    bases.start_if_needed(9)
    assert bases.wait(60)
    now_s += 2 * FIRST_WAIT_S - 1
    bases.start_if_needed(10)
    now_s += 1
    bases.start_if_needed(11)
    assert bases.wait(60)

    assert tables.paths == [f"{tmp_path}/base-{step}" for step in (7, 9, 11)]
    assert [(step, path) for step, path, _ in failed] == [
        (7, tables.paths[0]),
        (9, tables.paths[1]),
        (11, tables.paths[2]),
    ]
    assert "the disk is full" in str(failed[0][2])


def test_a_later_base_does_not_block_saves(tmp_path: Path) -> None:
    tables: Any = Tables(is_full=False)
    bases = BaseWriter(tables, str(tmp_path), fail)
    tables.files = (TableFile("gen-1/base-1", "sha256-0"),)
    bases.start_if_needed(7)
    assert not bases.blocks_saves
    tables.may_end.set()
    assert bases.wait(60)
    tables.needs_base = False
    bases.start_if_needed(8)
    assert len(tables.paths) == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_a_base_takes_the_place_of_the_files_before_it_or_is_removed(
    tmp_path: Path, is_late: bool
) -> None:
    tables: Any = Tables(is_full=False)
    bases = BaseWriter(tables, str(tmp_path), fail)
    bases.start_if_needed(7)
    assert tables.has_begun.wait(60)
    if is_late:  # a checkpoint with all rows was saved meanwhile
        tables.files = (TableFile("gen-1/ckpt-8", "sha256-0"),)
    tables.may_end.set()
    assert bases.wait(60)
    if is_late:
        assert [each.path for each in tables.files] == ["gen-1/ckpt-8"]
        assert list(tmp_path.iterdir()) == []
    else:
        path = f"{tmp_path}/base-7"
        assert tables.files == (TableFile(path_in_job(path), seal_checkpoint(path).digest),)
