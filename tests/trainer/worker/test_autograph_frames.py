"""Tests of functions that TensorFlow has rewritten: stacks have the lines of the original."""

from __future__ import annotations

import traceback
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest
import tensorflow as tf

from services.trainer.protocol import GENERATED_FILE
from services.trainer.worker import failure_cause
from services.trainer.worker.failure_cause import original_frames
from services.trainer.worker.watchdog import thread_stack

TEXT = """import sys

import tensorflow as tf


@tf.function
def leaves(x):
    if tf.reduce_sum(x) > 0.0:
        x = x + 1.0
    sys.exit(3)  # leaves


@tf.function
def stands(x, entered, ends):
    for _ in [x]:
        entered.set()
        ends.wait()  # stands
    return x
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "net.py"
    path.write_text(TEXT)
    made = ModuleType("net")
    made.__file__ = str(path)
    exec(compile(TEXT, str(path), "exec"), vars(made))
    return made


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(TEXT.splitlines(), 1) if words in line)


def test_an_error_in_generated_code_has_the_original_line(module: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        module.leaves(tf.ones([2]))

    met = traceback.extract_tb(caught.value.__traceback__)
    assert any(GENERATED_FILE in frame.filename for frame in met), "it was rewritten"
    told = failure_cause.describe_failure(caught.value, str(module.__file__))
    assert (
        told.startswith(f"net.py:{line_of('# leaves')}: SystemExit: 3\nTraceback")
        and GENERATED_FILE not in told
    )


def test_a_thread_in_generated_code_has_the_original_line(module: ModuleType) -> None:
    entered, ends = Event(), Event()
    thread = Thread(target=module.stands, args=(tf.ones([2]), entered, ends), daemon=True)
    thread.start()
    assert entered.wait(60) and thread.ident is not None

    told = thread_stack(thread.ident, str(module.__file__))

    ends.set()
    thread.join(60)
    assert f'net.py", line {line_of("# stands")}, in stands' in told and told.startswith(
        f'  File "{module.__file__}"'
    )


def test_frames_of_other_code_are_unchanged() -> None:
    frames = [
        traceback.FrameSummary(f"/tmp/{GENERATED_FILE}-of-another.py", 3, "tf__loss"),
        *traceback.extract_stack(),
    ]

    assert original_frames(frames) == frames
