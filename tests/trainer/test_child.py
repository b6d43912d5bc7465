"""A child says why its program failed, and its author understands it: real TensorFlow, one short life a program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.trainer.children import Nursery
from services.trainer.orders import Finished
from tests.trainer.cradle import PLAIN, Cradle

DATA = "\n\n_plain = dataset\n\n\ndef dataset(start, stop):\n"
LONG_AGO = "    if stop - start == 1:\n        return _plain(start, stop)\n"  # as it is looked at before training


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery("chief")
    yield made
    made.close()


@pytest.fixture
def cradle(nursery: Nursery, tmp_path: Path) -> Cradle:
    return Cradle(nursery, tmp_path)


async def test_a_plain_program_lives_to_its_end(cradle: Cradle) -> None:
    await cradle.lives(PLAIN)

    assert isinstance(cradle.said["chief"][-1], Finished), cradle.said


FAULTS = {
    "syntax": (
        PLAIN + "\n\ndef extra(:\n",
        "net.py:28: SyntaxError: invalid syntax",
        'File "net.py", line 28',
    ),
    "import": (PLAIN + "\n\nimport a_library_that_nobody_has\n", "net.py:28: ModuleNotFoundError: No module named", ""),
    "lacking": (PLAIN.replace("def loss", "def lost"), "net.py lacks loss()", ""),
    "wrong-kind": (
        PLAIN + "\n\ndef optimizer():\n    return 'sgd'\n",
        "net.py:28: optimizer() returned <class 'str'>; a keras Optimizer is needed",
        "",
    ),
    "model": (
        PLAIN + "\n\ndef model():\n    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense('n')])\n",
        "net.py:29: ValueError: Received an invalid value for `units`",
        'File "net.py", line 29, in model\n    return keras',
    ),
    "traced": (
        PLAIN + "\n\ndef loss(labels, outputs):\n    return tf.matmul(labels, tf.ones((7, 3)))\n",
        "net.py:29: ValueError: Dimensions must be equal, but are 1 and 7",
        'File "net.py", line 29, in loss\n    return tf.matmul',
    ),
    "run": (
        PLAIN + "\n\ndef loss(labels, outputs):\n    return tf.gather(outputs, tf.cast(labels * 900, 'int32'))\n",
        "net.py:29: InvalidArgumentError: indices[0,0] = 900 is not in [0, 16)",
        'File "net.py", line 29, in loss\n',
    ),
    "data": (
        PLAIN + DATA + LONG_AGO + "    raise LookupError('the library has\\nburnt down')\n",
        "net.py:34: LookupError: the library has",
        'File "net.py", line 34, in dataset\n    raise LookupError',
    ),
    "generator": (
        PLAIN
        + DATA
        + LONG_AGO
        + "    def rows():\n        yield np.ones(4), [1.0]\n        raise KeyError('row')\n"
        + "    kinds = (tf.TensorSpec([4]), tf.TensorSpec([1]))\n"
        + "    return tf.data.Dataset.from_generator(rows, output_signature=kinds)\n",
        "net.py:36: KeyError: 'row'",
        "in rows\n    raise KeyError('row')",
    ),
    "map": (
        PLAIN + DATA + "    return _plain(start, stop).map(lambda x, y: (tf.reshape(x, (9, 9)), y))\n",
        "net.py:32: ValueError: Cannot reshape a tensor with 4 elements",
        'File "net.py", line 32, in ',
    ),
    "too-few": (
        PLAIN + DATA + "    return _plain(start, min(stop, 20))\n",
        "net.py:31: dataset(16, 32) gave 4 examples instead of 16",
        "",
    ),
    "none-at-all": (
        PLAIN + DATA + LONG_AGO + "    return _plain(start, stop).take(0)\n",
        "net.py:31: dataset(0, 16) gave 0 examples instead of 16",
        "",
    ),
    "batched": (
        PLAIN + DATA + "    return _plain(start, stop).batch(32)\n",
        "net.py:31: dataset(0, 1) has inputs of the shapes (None, 4), but the model takes (4,): is it batched already?",
        "",
    ),
    "batched-for-a-model-that-takes-anything": (
        PLAIN
        + DATA
        + "    return _plain(start, stop).batch(32)\n\n\ndef model():\n"
        + "    class Net(keras.Model):\n        def __init__(self):\n            super().__init__()\n"
        + "            self.dense = keras.layers.Dense(1)\n\n        def call(self, inputs):\n"
        + "            return self.dense(inputs)\n\n    return Net()\n",
        "net.py:31: dataset(0, 16) gave 1 examples instead of 16, of the shapes (None, 4), (None, 1): is it batched",
        "",
    ),
    "evaluation": (
        PLAIN + "\n\ndef evaluation():\n    return dataset(0, len(None))\n",
        "net.py:29: TypeError: object of type 'NoneType' has no len()",
        'File "net.py", line 29, in evaluation',
    ),
    "evaluation-in-a-generator": (
        PLAIN
        + "\n\ndef evaluation():\n    def rows():\n        raise KeyError('exam')\n        yield\n"
        + "    kinds = (tf.TensorSpec([4]), tf.TensorSpec([1]))\n"
        + "    return tf.data.Dataset.from_generator(rows, output_signature=kinds)\n",
        "net.py:30: KeyError: 'exam'",
        "in rows\n    raise KeyError('exam')",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_first_line_says_where_and_what_and_then_comes_the_programs_own_traceback(
    cradle: Cradle, fault: str
) -> None:
    program, first, traceback = FAULTS[fault]

    failed = await cradle.fails(program)

    assert failed.cause.startswith(first) and not failed.peer, failed.cause
    assert traceback in failed.cause, failed.cause
    foreign = [word for word in ("services/trainer", "site-packages", "BadProgram", "grpc") if word in failed.cause]
    assert foreign == [], failed.cause


@pytest.mark.parametrize("fault", ["evaluation", "evaluation-in-a-generator"])
async def test_what_cannot_be_evaluated_fails_before_anything_is_trained(cradle: Cradle, fault: str) -> None:
    await cradle.fails(FAULTS[fault][0])

    assert not cradle.begun, cradle.said
