"""What keeps a checkpoint from being written is told with its cause and with what helps."""

from __future__ import annotations

import pytest

from services.trainer.disk import LONGEST, trouble

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
            "is not there",
            "every node of the job mounts it",
        ),
        ("UnknownError", "/c/gen-1; Input/output error", "the disk under", "look at its volume"),
        ("UnavailableError", "gs://b/gen-1: 503", "does not answer", "look at the store"),
    ],
)
def test_what_file_systems_say_becomes_a_cause_and_a_remedy(
    kind: str, text: str, cause: str, remedy: str
) -> None:
    found = trouble(kind, text)
    assert cause in found.cause and remedy in found.remedy


def test_the_file_systems_own_words_stand_behind_the_cause_without_tensorflows() -> None:
    assert trouble("ResourceExhaustedError", FULL).cause == (
        "the checkpoint folder is full (/c/gen-1/ckpt-3_temp/part-0; No space left on device)"
    )


def test_what_nobody_knows_is_told_as_it_is_but_not_at_any_length() -> None:
    found = trouble("InternalError", "x" * 10_000)
    assert found.cause == f"InternalError: {'x' * LONGEST}"
