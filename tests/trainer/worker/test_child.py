"""Tests of the cause of a child's end: the program, or a task that was lost."""

from __future__ import annotations

import pytest
import tensorflow as tf

from services.trainer.worker.child import is_peer_lost

ERRORS = tf.errors
INVALID = (
    "Resource input tensor contains an invalid device. This might happen when the client has"
    " connected to a "
)


@pytest.mark.parametrize(
    ("error", "peer"),
    [
        (ERRORS.UnavailableError(None, None, "failed to connect to all addresses"), True),
        (ERRORS.UnknownError(None, None, "Could not start gRPC server"), True),
        (
            ERRORS.InvalidArgumentError(
                None,
                None,
                f"{INVALID}different cluster, or some remote workers have been restarted.",
            ),
            True,
        ),
        (ERRORS.InvalidArgumentError(None, None, "Incompatible shapes: [16,3] vs. [16,4]"), False),
        (ValueError("some remote workers have been restarted"), False),
    ],
    ids=["no-answer", "port-taken", "server-gone", "wrong-shapes", "no-error-of-tensorflow"],
)
def test_a_lost_server_is_no_program_error(error: Exception, peer: bool) -> None:
    assert is_peer_lost(error) is peer
