"""Tests of failures inside a dataset: the cause has the line in the program.

TensorFlow names only an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow as tf

from services.trainer import program
from services.trainer.worker import evaluation, failure_cause, program_data
from services.trainer.worker.watchdog import Watchdog

HEAD = """import tensorflow as tf


def model(): ...
def optimizer(): ...
def loss(labels, outputs): ...
def examples(): return 4


def pairs(start, stop):
    return tf.data.Dataset.range(start, stop).map(lambda n: (tf.cast(n, tf.float32), n))


"""
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str) -> ModuleType:
        path = tmp_path / "sha256-1" / "net.py"
        path.parent.mkdir()
        path.write_text(HEAD + text)
        return program.load(path, program.program_digest(path.read_bytes()))

    return load


def told(module: ModuleType) -> str:
    """Return the described failure of a program whose dataset cannot be read."""
    with pytest.raises(tf.errors.OpError) as caught:
        program_data.read_batch(module, 0, 4)
    return failure_cause.describe_failure(caught.value, str(module.__file__))


def line_of(module: ModuleType, words: str) -> int:
    return next(
        n
        for n, line in enumerate(Path(str(module.__file__)).read_text().splitlines(), 1)
        if words in line
    )


MAPPED = """def shifted(x, n):
    if x > -1.0:
        x = x + tf.gather([1.0], 1000)  # here
    return x, n


def dataset(start, stop):
    return pairs(start, stop).map(shifted).prefetch(2)
"""
DEEPER = """@tf.function
def parsed(x):
    return tf.strings.to_number(tf.strings.as_string(x) + "!")  # here


def dataset(start, stop):
    def rows(x, n):
        return tf.data.Dataset.from_tensors((x, n)).map(lambda x, n: (parsed(x), n))

    return pairs(start, stop).flat_map(rows)
"""
SIDE_BY_SIDE = """def dataset(start, stop):
    kept = pairs(start, stop).filter(lambda x, n: tf.strings.to_number("two") > x)  # here
    return tf.data.Dataset.zip((kept, pairs(start, stop))).map(lambda a, b: a)
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MAPPED, "InvalidArgumentError: indices = 1000 is not in [0, 1)"),
        (
            DEEPER,
            "InvalidArgumentError: StringToNumberOp could not correctly convert string: 0.000000!",
        ),
        (
            SIDE_BY_SIDE,
            "InvalidArgumentError: StringToNumberOp could not correctly convert string: two",
        ),
    ],
    ids=["rewritten", "deeper", "side-by-side"],
)
def test_a_failed_dataset_operation_has_its_own_line_first(
    load: Load, text: str, says: str
) -> None:
    module = load(text)

    first, *rest = told(module).splitlines()

    assert first == f"net.py:{line_of(module, '# here')}: {says}"
    assert rest[0] == "Traceback (most recent call last):" and "autograph" not in "".join(rest)


ABSENT = """def dataset(start, stop):
    return tf.data.TextLineDataset("/nowhere.csv").map(lambda line: (line, 1))
"""
TWICE = """def dataset(start, stop):
    once = pairs(start, stop).map(lambda x, n: (tf.gather([x], 0), n))
    return once.map(lambda x, n: (tf.gather([x], 7), n))
"""


@pytest.mark.parametrize(
    ("text", "says"), [(ABSENT, "NotFoundError: /nowhere.csv; No such"), (TWICE, "Invalid")]
)
def test_an_ambiguous_failure_has_the_line_of_the_dataset(load: Load, text: str, says: str) -> None:
    module = load(text)

    assert told(module).startswith(f"net.py:{line_of(module, 'def dataset')}: {says}")


MODEL = """
def model():
    return tf.keras.Sequential([tf.keras.layers.Input(()), tf.keras.layers.Reshape((1,))])
"""


def test_a_failed_evaluation_operation_has_its_line(load: Load) -> None:
    module = load(f"{MAPPED}\n\ndef evaluation():\n    return dataset(0, 4)\n\n{MODEL}")

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        evaluation.try_evaluation(module, Watchdog(str(module.__file__), 60.0, 60.0))

    assert failure_cause.describe_failure(caught.value, str(module.__file__)).startswith(
        f"net.py:{line_of(module, '# here')}: Invalid"
    )
