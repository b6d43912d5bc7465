"""Tests of the files that hold the tables of a checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from services.trainer import table_files
from services.trainer.table_files import (
    MOST_DELTAS,
    TableFile,
    files_to_read,
    is_obsolete_base,
    needs_base,
)

BASE = TableFile("gen-1/base-0", "base", rows=1000, bytes=100_000)
DELTAS = [TableFile(f"gen-1/ckpt-{n}", f"delta {n}", rows=10, bytes=1000, ps=2) for n in range(9)]
NEWER = TableFile("gen-1/base-3", "newer base", rows=1000, bytes=100_000)


def test_only_the_files_after_the_last_one_that_is_held_are_read() -> None:
    wanted = [BASE, *DELTAS[:4]]
    assert files_to_read([], wanted) == tuple(wanted)
    assert files_to_read([BASE], wanted) == tuple(DELTAS[:4])
    assert files_to_read(wanted[:3], wanted) == tuple(DELTAS[2:4])
    assert files_to_read(wanted, wanted) == ()


def test_a_new_base_does_not_count_if_the_deltas_after_it_are_held() -> None:
    assert files_to_read([BASE, *DELTAS[:4]], [NEWER, *DELTAS[3:6]]) == tuple(DELTAS[4:6])


def test_a_new_base_is_not_read_if_what_it_follows_is_held() -> None:
    following = msgspec.structs.replace(NEWER, follows=DELTAS[2].digest)
    wanted = [following, *DELTAS[3:6]]
    assert files_to_read([BASE, *DELTAS[:3]], wanted) == tuple(DELTAS[3:6])
    assert files_to_read([BASE, *DELTAS[:2]], wanted) == tuple(wanted)
    assert files_to_read([BASE, *DELTAS[:3]], [following]) == (following,)


def test_all_files_are_read_after_a_base_that_is_newer_than_what_is_held() -> None:
    wanted = [NEWER, *DELTAS[3:6]]
    assert files_to_read([BASE, *DELTAS[:2]], wanted) == tuple(wanted)


def test_a_base_is_needed_without_one_and_after_many_or_large_deltas() -> None:
    small = TableFile("gen-1/ckpt-9", "small", bytes=1, ps=2)
    large = TableFile("gen-1/ckpt-9", "large", bytes=250_000, ps=2)
    assert needs_base([])
    assert not needs_base([BASE])
    assert not needs_base([BASE, *DELTAS])
    assert not needs_base([BASE, *[small] * (MOST_DELTAS - 1)])
    assert needs_base([BASE, *[small] * MOST_DELTAS])
    assert needs_base([BASE, large])


def test_a_base_of_an_earlier_version_has_no_known_size_and_is_replaced() -> None:
    assert needs_base([TableFile("gen-1/ckpt-7", "old", in_blocks=False), DELTAS[0]])


@pytest.mark.parametrize(
    "name, obsolete",
    [
        ("base-2.index", True),
        ("base-2.data-00000-of-00002", True),
        ("base-2_temp", True),
        ("base-3.index", False),
        ("base-7.index", False),
        ("ckpt-2.index", False),
    ],
)
def test_a_base_earlier_than_those_in_use_is_obsolete(name: str, obsolete: bool) -> None:
    bases = ["/jobs/a/gen-1/base-3", "/jobs/a/gen-1/ckpt-8"]
    assert is_obsolete_base(1, name, bases) == obsolete


def test_all_bases_are_obsolete_once_only_whole_checkpoints_are_kept() -> None:
    assert is_obsolete_base(1, "base-7.index", ["/jobs/a/gen-2/ckpt-9"])


def test_no_base_is_obsolete_while_no_checkpoint_is_kept() -> None:
    assert not is_obsolete_base(1, "base-2.index", [])


def test_paths_are_those_within_the_folder_of_the_job() -> None:
    path = "s3://bucket/jobs/a-7/gen-3/ckpt-480"
    assert table_files.path_in_job(path) == "gen-3/ckpt-480"
    assert table_files.job_folder(path) == "s3://bucket/jobs/a-7"
