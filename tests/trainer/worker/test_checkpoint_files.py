"""A cut, its files and their seal, on real servers; in a folder, and where TensorFlow finds its way
by a URL.

What keeps a checkpoint from being written is told with its cause and with what helps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.trainer.worker.failure_cause import STORAGE_TEXT_LENGTH, explain_storage_error

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[1] / "programs" / "cutting.py"
COUNTED = 4 * 8 + 8 * 2 + 1  # weights of `counting.py`, those of its two dense layers


@pytest.fixture(scope="module", params=["folder", "ram://store/job"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    to = request.param if "://" in request.param else str(tmp_path_factory.mktemp("cutting"))
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), to],
        capture_output=True,
        text=True,
        env=environ,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_written_while_training_goes_on_is_what_was_cut_to_the_last_bit(told: Any) -> None:
    assert told["restored"] == told["cut"]
    changed = [name for name in told["cut"] if told["cut"][name] != told["later"][name]]
    assert {"model/0", "meter/applied", "meter/step"} <= {*changed} and len(changed) >= 10, (
        "it did go on"
    )


def test_the_ledger_is_that_of_the_cut(told: Any) -> None:
    assert told["applied"] == [96, 48]


def test_a_checkpoint_that_is_whole_has_nothing_wrong(told: Any) -> None:
    assert told["sound"] == ["", "", ""]


def test_a_bit_that_has_turned_over_is_found_while_restoring_and_changes_nothing(told: Any) -> None:
    assert told["bit"] == ["", "DataLossError"]
    assert told["kept"]


@pytest.mark.parametrize("spoilt", ["index", "other"])
def test_files_that_are_not_those_that_were_sealed_are_torn(told: Any, spoilt: str) -> None:
    assert told[spoilt] == "it is damaged: its files are not those that were written"


def test_one_without_an_index_is_missing(told: Any) -> None:
    assert told["missing"] == "it is missing"


def test_a_folder_that_is_none_is_refused_and_the_next_save_works(told: Any) -> None:
    assert told["unwritten"].endswith("Error")


def test_a_mark_names_what_the_ledger_has_named_and_changes_no_digest(told: Any) -> None:
    assert told["marked"] and told["marks"] == ["", False]
    assert told["torn mark"] == 1, "one that was not written to its end counts as none"


def test_what_is_not_kept_goes_and_so_does_an_empty_folder_of_an_older_generation(
    told: Any,
) -> None:
    assert told["left"] == ["file", "gen-2"]
    assert told["steps"] == ["ckpt-10", "ckpt-9"], "the later one may be under way"
    assert told["removed"] == ["ckpt-9"]


def test_the_fullest_ps_holds_part_of_the_model_and_all_is_no_more_than_its_files(
    told: Any,
) -> None:
    assert COUNTED * 4 * 3 / 2 < told["largest"] < told["bytes"]


FULL = "{{function_node __wrapped__x}} /c/gen-1/ckpt-3_temp/part-0; No space left on device\n\t [[{{node SaveV2}}]]"


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
def test_what_file_systems_say_becomes_a_cause_and_a_remedy(
    kind: str, text: str, cause: str, remedy: str
) -> None:
    found = explain_storage_error(kind, text)
    assert cause in found.cause and remedy in found.remedy


def test_the_file_systems_own_words_stand_behind_the_cause_without_tensorflows() -> None:
    assert explain_storage_error("ResourceExhaustedError", FULL).cause == (
        "the checkpoint folder is full (/c/gen-1/ckpt-3_temp/part-0; No space left on device)"
    )


def test_what_nobody_knows_is_told_as_it_is_but_not_at_any_length() -> None:
    found = explain_storage_error("InternalError", "x" * 10_000)
    assert found.cause == f"InternalError: {'x' * STORAGE_TEXT_LENGTH}"
