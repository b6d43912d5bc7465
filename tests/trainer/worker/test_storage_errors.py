"""Tests that an outage of the storage is told apart from damaged or missing checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from services.trainer.protocol import EXIT_PEER_LOST, Failed
from services.trainer.worker.checkpoint_files import (
    StorageNotReadable,
    checkpoint_fault,
    detect_storage_errors,
)
from services.trainer.worker.child import report_failure
from services.trainer.worker.failure_cause import StorageUnavailable
from tests.trainer.builders import assignment

errors = tf.errors


def op_error(kind: Any, text: str) -> Exception:
    return kind(None, None, text)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "error",
    [
        op_error(errors.UnavailableError, "503"),
        op_error(errors.UnknownError, "ckpt-5.index; Input/output error"),
        op_error(errors.AbortedError, "ckpt-5.index; Stale file handle"),
        op_error(errors.FailedPreconditionError, "gen-1; Transport endpoint is not connected"),
        op_error(errors.InvalidArgumentError, "Failed to get matching files on gs://a/ckpt-5: 503"),
        op_error(errors.NotFoundError, "Failed to find any matching files for /data/ckpt-5"),
        errors.OpError(None, None, "what the reader does not know", errors.UNKNOWN),
    ],
)
def test_an_outage_is_no_damage(error: Exception) -> None:
    with pytest.raises(StorageNotReadable), detect_storage_errors():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        op_error(errors.NotFoundError, "Key model/a not found in checkpoint"),
        op_error(errors.NotFoundError, "ckpt-5.data-00000-of-00001; No such file or directory"),
        op_error(errors.DataLossError, "Checksum does not match"),
        op_error(errors.OutOfRangeError, "Read less bytes than requested"),
        op_error(errors.InvalidArgumentError, "Shape of tensor model/a does not match"),
        op_error(errors.FailedPreconditionError, "/data/file/ckpt-5; Not a directory"),
    ],
)
def test_damage_is_no_outage(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, detect_storage_errors():
        raise error
    assert raised.value is error


def test_a_checkpoint_that_nobody_can_read_is_neither_missing_nor_damaged(tmp_path: Any) -> None:
    (tmp_path / "gen-1").symlink_to("gen-1")
    with pytest.raises(StorageNotReadable):
        checkpoint_fault(f"{tmp_path}/gen-1/ckpt-5", "")
    assert checkpoint_fault(f"{tmp_path}/gen-2/ckpt-5", "") == "it is missing"


def test_an_outage_of_the_storage_is_no_failure_of_the_job() -> None:
    said: list[Any] = []
    code = report_failure(
        StorageUnavailable("the store does not answer"), said.append, assignment()
    )

    assert code == EXIT_PEER_LOST
    assert said == [Failed(cause="the store does not answer", peer=True)]
