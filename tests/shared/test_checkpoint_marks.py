"""Which checkpoints come first when a job goes on, and what a digest pins."""

from __future__ import annotations

from shared.checkpoints import Committed, candidates, counts, digest, step

NAMED = ("/c/gen-2/ckpt-40", "/c/gen-2/ckpt-30")


def test_marked_checkpoints_come_first_where_they_are_newer_than_the_ledger() -> None:
    marked = ("/c/gen-3/ckpt-60", "/c/gen-2/ckpt-40", "/c/gen-3/ckpt-70")

    assert candidates(NAMED, marked) == ("/c/gen-3/ckpt-70", "/c/gen-3/ckpt-60", *NAMED)


def test_the_ledger_decides_where_no_marked_checkpoint_is_newer() -> None:
    """A generation number says nothing here: after a loss the same numbers are given again."""
    assert candidates(NAMED, ("/c/gen-7/ckpt-35", "/c/gen-1/ckpt-40")) == NAMED
    assert candidates((), ()) == ()


def test_without_a_ledger_entry_all_marked_ones_are_tried() -> None:
    assert candidates((), ("/c/gen-1/ckpt-5", "/c/gen-1/ckpt-12")) == (
        "/c/gen-1/ckpt-12",
        "/c/gen-1/ckpt-5",
    )


def test_the_digest_is_of_the_index_and_of_the_sizes_of_the_other_files() -> None:
    first = digest(b"index", [("a", 1), ("b", 2)])

    assert first == digest(b"index", [("b", 2), ("a", 1)])
    assert (
        len({first, digest(b"other", [("a", 1), ("b", 2)]), digest(b"index", [("a", 1), ("b", 3)])})
        == 3
    )
    assert [counts(f"ckpt-1{end}") for end in (".index", ".committed", ".data-00000-of-00001")] == [
        False,
        False,
        True,
    ]


def test_a_mark_tells_whether_the_job_had_trained_all() -> None:
    assert Committed(digest="d", samples=10, total_samples=10).finished
    assert not Committed(digest="d", samples=9, total_samples=10).finished
    assert not Committed(digest="d").finished
    assert step("/c/gen-1/ckpt-12") == 12 and step("/c/gen-1/rehearsal") == -1
