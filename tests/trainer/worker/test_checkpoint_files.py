"""Tests of snapshots, their files and their seal on real servers, in a folder and at a URL.

If a checkpoint cannot be written, the cause and a remedy are reported.
"""

from __future__ import annotations

from typing import Any

import pytest

from services.trainer.worker.failure_cause import STORAGE_TEXT_LENGTH, explain_storage_error
from tests.trainer.script import run_script

COUNTED = 4 * 8 + 8 * 2 + 1  # weights of `counting.py`, those of its two dense layers


@pytest.fixture(scope="module", params=["folder", "ram://store/job"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    to = request.param if "://" in request.param else str(tmp_path_factory.mktemp("cutting"))
    return run_script("cutting.py", to)


def test_a_background_checkpoint_is_bit_equal_to_its_snapshot(told: Any) -> None:
    assert told["restored"] == told["cut"]
    changed = [name for name in told["cut"] if told["cut"][name] != told["later"][name]]
    assert {"model/0", "meter/applied", "meter/step"} <= {*changed} and len(changed) >= 10, (
        "it did go on"
    )


def test_the_ledger_of_a_checkpoint_is_that_of_its_snapshot(told: Any) -> None:
    assert told["applied"] == [96, 48]


def test_an_intact_checkpoint_is_accepted(told: Any) -> None:
    assert told["sound"] == ["", "", ""]


def test_a_flipped_bit_is_detected_and_restores_nothing(told: Any) -> None:
    assert told["bit"] == ["", "DataLossError"]
    assert told["kept"]


@pytest.mark.parametrize("spoilt", ["index", "other"])
def test_changed_files_make_a_checkpoint_damaged(told: Any, spoilt: str) -> None:
    assert told[spoilt] == "it is damaged: its files are not those that were written"


def test_a_checkpoint_without_an_index_is_missing(told: Any) -> None:
    assert told["missing"] == "it is missing"


def test_an_invalid_folder_fails_a_save_and_the_next_one_works(told: Any) -> None:
    assert told["unwritten"].endswith("Error")


def test_a_rehearsal_leaves_no_change(told: Any) -> None:
    assert told["rehearsed"] == [[0, True, True]] * 2
    assert told["rehearsed unwritten"] == [[1, True, True]] * 2


def test_a_mark_does_not_change_the_digest(told: Any) -> None:
    assert told["marked"] and told["marks"] == ["", False]
    assert told["torn mark"] == 1, "one that was not written to its end counts as none"


def test_obsolete_checkpoints_and_empty_folders_are_deleted(
    told: Any,
) -> None:
    assert told["left"] == ["file", "gen-2"]
    assert told["steps"] == ["ckpt-10", "ckpt-9"], "the later one may be under way"
    assert told["removed"] == ["ckpt-9"]


def test_the_largest_ps_share_is_within_the_size_of_the_files(
    told: Any,
) -> None:
    assert COUNTED * 4 * 3 / 2 < told["largest"] < told["bytes"]


FULL = (
    "{{function_node __wrapped__x}} /c/gen-1/ckpt-3_temp/part-0; No space left on device\n\t"
    " [[{{node SaveV2}}]]"
)


@pytest.mark.parametrize(
    ("kind", "text", "cause", "remedy"),
    [
        ("ResourceExhaustedError", FULL, "is full", "make room"),
        ("UnknownError", "/c/gen-1; Disk quota exceeded", "is full", "make room"),
        (
            "PermissionDeniedError",
            "/c/gen-1; Permission denied",
            "cannot be written",
            "let the job's pods write",
        ),
        (
            "UnknownError",
            "/c/gen-1; Read-only file system",
            "cannot be written",
            "let the job's pods write",
        ),
        (
            "FailedPreconditionError",
            "/c/gen-1; Not a directory",
            "does not exist",
            "every node of the job mounts it",
        ),
        ("UnknownError", "/c/gen-1; Input/output error", "the disk under", "check its volume"),
        ("UnavailableError", "gs://b/gen-1: 503", "does not answer", "check the store"),
    ],
)
def test_file_system_errors_become_a_cause_and_a_remedy(
    kind: str, text: str, cause: str, remedy: str
) -> None:
    found = explain_storage_error(kind, text)
    assert cause in found.cause and remedy in found.remedy


def test_the_file_systems_error_follows_the_cause() -> None:
    assert (
        explain_storage_error("ResourceExhaustedError", FULL).cause
        == "the checkpoint folder is full (/c/gen-1/ckpt-3_temp/part-0; No space left on device)"
    )


def test_an_unknown_storage_error_is_shown_up_to_a_length() -> None:
    found = explain_storage_error("InternalError", "x" * 10_000)
    assert found.cause == f"InternalError: {'x' * STORAGE_TEXT_LENGTH}"
