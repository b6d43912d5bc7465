"""Tests of the thread that writes bases."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from services.trainer.table_files import TableFile
from services.trainer.worker.table_base import BaseWriter


class Tables:
    """Tables whose base is written when the test allows it, and then fails."""

    def __init__(self) -> None:
        self.files: tuple[TableFile, ...] = ()
        self.needs_base = True
        self.paths: list[str] = []
        self.may_end = threading.Event()

    def write_base(self, path: str) -> tuple[TableFile, ...]:
        self.paths.append(path)
        assert self.may_end.wait(60)
        raise ValueError("the disk is full")


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
