"""Tests of a child: its import of TensorFlow, and whether the program or a lost task ended it."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from services.trainer.worker.child import import_without, is_peer_lost, task_thread_config
from shared.messages import Resources
from tests.architecture.source import ROOT
from tests.trainer.builders import assignment

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


@pytest.mark.parametrize(("cpu", "spins"), [(0.25, False), (1.0, True)])
def test_idle_threads_of_a_part_of_a_core_do_not_spin(cpu: float, spins: bool) -> None:
    assigned = assignment(role="ps", resources=Resources(cpu=cpu, memory_gib=1))

    config = task_thread_config(assigned)

    assert config.experimental.disable_thread_spinning is not spins
    assert config.intra_op_parallelism_threads == 1


def test_a_hidden_package_is_missing_during_an_import_and_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plotting.py").write_text("")
    (tmp_path / "library.py").write_text(
        "import gc\ncollects = gc.isenabled()\n"
        "try:\n    import plotting\nexcept ImportError:\n    plotting = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    import_without(("plotting",), "library")

    library = importlib.import_module("library")
    assert library.plotting is None and not library.collects
    assert importlib.import_module("plotting") and gc.isenabled()


def test_tensorflow_is_imported_without_packages_that_training_does_not_need() -> None:
    code = (
        "import sys\nfrom services.trainer.worker import child\nchild.import_tensorflow()\n"
        "assert not sys.modules.keys() & {'sklearn', 'matplotlib'}\n"
        "import keras, matplotlib.pyplot, sklearn.datasets\n"
        "keras.Sequential([keras.layers.Dense(1)]).build((None, 2))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
