"""Tests of the thread that writes bases."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from services.trainer.table_files import TableFile, path_in_job
from services.trainer.worker.checkpoint_files import seal_checkpoint
from services.trainer.worker.table_base import BaseWriter


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
            raise ValueError("the disk is full")
        tf.train.Checkpoint(rows=tf.Variable([1.0])).write(path)
        return before

    def adopt_base(self, path: str, digest: str, before: tuple[TableFile, ...]) -> bool:
        if self.files != before:
            return False
        self.files = (TableFile(path_in_job(path), digest),)
        return True


def test_the_first_base_blocks_saves_until_it_is_complete_or_has_failed(tmp_path: Path) -> None:
    tables: Any = Tables()
    bases = BaseWriter(tables, str(tmp_path))
    assert bases.wait() and not bases.blocks_saves

    bases.start_if_needed(7)
    bases.start_if_needed(8)
    assert bases.blocks_saves and not bases.wait(0.01)
    tables.may_end.set()
    assert bases.wait(60) and not bases.blocks_saves
    bases.start_if_needed(9)
    assert bases.wait(60)

    assert tables.paths == [f"{tmp_path}/base-7", f"{tmp_path}/base-9"]


def test_a_later_base_does_not_block_saves(tmp_path: Path) -> None:
    tables: Any = Tables()
    bases = BaseWriter(tables, str(tmp_path))
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
    bases = BaseWriter(tables, str(tmp_path))
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
