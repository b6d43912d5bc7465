"""Tests of the checkpoint folder of a job, which belongs to that job alone.

Also tests of the order in which checkpoints are tried, and of what a digest covers.
"""

from __future__ import annotations

import msgspec
import pytest

from shared.checkpoints import (
    CommitMark,
    checkpoint_digest,
    checkpoint_location,
    checkpoint_step,
    is_in_digest,
    is_in_namespace,
    new_checkpoint_folder,
    restore_candidates,
)
from shared.messages import CheckpointRule, JobRequested
from tests.launcher.builders import request

NOVEMBER = 1_795_408_512.0  # 2026-11-23 04:35:12 UTC
BUCKET = "gs://bucket/models"


def asked(job: str = "net", namespace: str = "team-a", path: str | None = None) -> JobRequested:
    wanted = request(checkpoint=CheckpointRule(path=path))
    return msgspec.structs.replace(wanted, job=job, namespace=namespace)


def where(wanted: JobRequested, uid: int = 7, accepted_s: float = NOVEMBER) -> str:
    return checkpoint_location(wanted, uid, new_checkpoint_folder(wanted, uid, accepted_s))


def test_the_checkpoint_folder_has_namespace_job_uid_and_acceptance_time() -> None:
    assert where(asked()) == "team-a/net-7-20261123t043512"
    assert where(asked(path="vision/deep")) == "team-a/vision/deep/net-7-20261123t043512"
    assert where(asked(path=BUCKET)) == f"{BUCKET}/team-a/net-7-20261123t043512"


@pytest.mark.parametrize("path", [None, "shared", "team-a/net-7-20261123t043512", BUCKET])
def test_two_jobs_with_the_same_path_have_two_folders(path: str | None) -> None:
    mine = where(asked(path=path))
    others = [
        where(asked(path=path, namespace="team-b")),
        where(asked(path=path, job="other")),
        where(asked(path=path), uid=8),
        where(
            asked(path=path), accepted_s=NOVEMBER + 3600.0
        ),  # after a loss of the bus the same uid is used again
    ]
    assert len({mine, *others}) == 5


def test_no_path_is_in_another_namespace() -> None:
    assert where(asked(namespace="team-b", path="team-a/secret-12")).startswith("team-b/")


def test_a_job_that_version_0_1_accepted_keeps_its_folder() -> None:
    assert checkpoint_location(asked(), 7, "") == "team-a/net-7"
    assert checkpoint_location(asked(path="mine"), 7, "") == "mine"
    assert checkpoint_location(asked(path=BUCKET), 7, "") == BUCKET


@pytest.mark.parametrize(
    "folder",
    ["team-a/net-7-20261123t043512", "team-a/net-7", "team-a/deep/net-7", f"{BUCKET}/team-a/net-7"],
)
def test_a_job_folder_of_the_namespace_is_recognised(folder: str) -> None:
    assert is_in_namespace(folder, "team-a") and not is_in_namespace(folder, "team-b")


@pytest.mark.parametrize(
    "folder",
    [
        "team-a",
        "net-7",
        "team-a/net",
        "gs://team-a/net-7",
        "team-b/team-a/net-7",
        "gs://bucket/team-a/team-b/net-7",
        "gs://bucket/team-a/deep/net-7",
    ],
)
def test_a_folder_outside_the_namespace_is_not_recognised(folder: str) -> None:
    assert not is_in_namespace(folder, "team-a")


NAMED = ("/c/gen-2/ckpt-40", "/c/gen-2/ckpt-30")


def test_marked_checkpoints_newer_than_the_ledger_come_first() -> None:
    marked = ("/c/gen-3/ckpt-60", "/c/gen-2/ckpt-40", "/c/gen-3/ckpt-70")

    assert restore_candidates(NAMED, marked) == ("/c/gen-3/ckpt-70", "/c/gen-3/ckpt-60", *NAMED)


def test_the_ledger_decides_if_no_marked_checkpoint_is_newer() -> None:
    """Generation numbers do not count: after a loss of the bus they are used again."""
    assert restore_candidates(NAMED, ("/c/gen-7/ckpt-35", "/c/gen-1/ckpt-40")) == NAMED
    assert restore_candidates((), ()) == ()


def test_without_a_ledger_entry_all_marked_ones_are_tried() -> None:
    assert restore_candidates((), ("/c/gen-1/ckpt-5", "/c/gen-1/ckpt-12")) == (
        "/c/gen-1/ckpt-12",
        "/c/gen-1/ckpt-5",
    )


def test_the_digest_is_of_the_index_and_of_the_sizes_of_the_other_files() -> None:
    first = checkpoint_digest(b"index", [("a", 1), ("b", 2)])

    assert first == checkpoint_digest(b"index", [("b", 2), ("a", 1)])
    assert (
        len(
            {
                first,
                checkpoint_digest(b"other", [("a", 1), ("b", 2)]),
                checkpoint_digest(b"index", [("a", 1), ("b", 3)]),
            }
        )
        == 3
    )
    assert [
        is_in_digest(f"ckpt-1{end}") for end in (".index", ".committed", ".data-00000-of-00001")
    ] == [
        False,
        False,
        True,
    ]


def test_a_mark_shows_that_the_job_was_complete() -> None:
    assert CommitMark(digest="d", samples=10, total_samples=10).finished
    assert not CommitMark(digest="d", samples=9, total_samples=10).finished
    assert not CommitMark(digest="d").finished
    assert checkpoint_step("/c/gen-1/ckpt-12") == 12 and checkpoint_step("/c/gen-1/rehearsal") == -1
