"""Hints for slips of labels beside outputs: given where nothing else can be meant, and else not."""

from __future__ import annotations

import ast

import pytest

from services.cli.diagnosis.loss import mended, of_probabilities, slipped, taken_for_probabilities
from services.trainer.examined import Examined, Shape

KERAS = "ValueError: Arguments `target` and `output` must have the same"
PROGRAM = """
def loss(labels, outputs):
    return {}
"""


@pytest.mark.parametrize(
    ("labels", "outputs", "hint"),
    [
        ((32,), (32, 1), "labels are (32,) and outputs (32, 1): take labels[:, None] in loss()"),
        ((32, 1), (32,), "labels are (32, 1) and outputs (32,): take outputs[:, None] in loss()"),
        (
            (32, 7),
            (32, 7, 1),
            "labels are (32, 7) and outputs (32, 7, 1): take labels[:, :, None] in loss()",
        ),
        ((32, 10), (32, 5), "a label has 10 numbers and an output 5: give the last layer 10"),
        ((32,), (32, 10), ""),
        ((32, 10), (32, 10), ""),
    ],
)
def test_a_slip_of_shape_is_told_with_both_shapes(labels: Shape, outputs: Shape, hint: str) -> None:
    assert slipped((labels,), (outputs,)) == hint
    assert slipped((labels, labels), (outputs,)) == ""


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (
            "InvalidArgumentError: Received a label value of 9 which is outside the valid range of [0, 5).",
            "5 classes",
        ),
        (
            f"{KERAS} rank (ndim). Received: target.shape=(32,), output.shape=(32, 10)\n"
            "    return keras.losses.categorical_crossentropy(labels, outputs)",
            "keras.losses.sparse_categorical_crossentropy takes",
        ),
        (
            "ValueError: Argument `output` must have rank (ndim) `target.ndim - 1`. Received: target.shape=(32, 10), "
            "output.shape=(32, 10)",
            "keras.losses.categorical_crossentropy takes",
        ),
        (
            f'{KERAS} rank (ndim). Received: ...\n  File "mine.py", line 9, in loss\n    return',
            "labels[:, None]",
        ),
        (f'{KERAS} rank (ndim). Received: ...\n  File "mine.py", line 9, in model\n    return', ""),
        ("ZeroDivisionError: division by zero\n  File 'mine.py', line 9, in loss\n", ""),
    ],
)
def test_a_failure_is_told_with_a_way_out_where_that_is_sure(cause: str, hint: str) -> None:
    found = mended(cause, Examined(labels=((32,),), outputs=((32, 1),)))

    assert hint in found and bool(hint) is bool(found)


@pytest.mark.parametrize(
    "call",
    [
        "keras.losses.sparse_categorical_crossentropy(labels, outputs)",
        "tf.keras.losses.BinaryCrossentropy(reduction=None)(labels, outputs)",
        "tf.reduce_mean(keras.losses.categorical_crossentropy(labels, outputs))",
    ],
)
def test_outputs_that_are_taken_for_probabilities_and_are_none_are_told(call: str) -> None:
    tree = ast.parse(PROGRAM.format(call))
    (told,) = of_probabilities(tree, "mine.py", Examined(span=(-1.25, 3.5)))

    assert (
        told.what
        == "mine.py:3: loss() takes outputs for probabilities, and they go from -1.25 to 3.5"
    )
    assert not list(of_probabilities(tree, "mine.py", Examined(span=(0.0, 1.0))))
    assert not list(of_probabilities(tree, "mine.py", Examined()))


@pytest.mark.parametrize(
    "call",
    [
        "keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)",
        "keras.losses.sparse_categorical_crossentropy(labels, outputs, True)",
        "keras.losses.BinaryCrossentropy(True)(labels, outputs)",
        "keras.losses.BinaryCrossentropy(**HOW)(labels, outputs)",
        "keras.losses.binary_crossentropy(labels, tf.nn.sigmoid(outputs))",
        "keras.losses.mean_squared_error(labels, outputs)",
        "own.binary_crossentropy(labels, outputs)",
        "labels\n    outputs = outputs / 2\n    return keras.losses.binary_crossentropy(labels, outputs)",
    ],
)
def test_what_is_not_plain_to_see_is_let_be(call: str) -> None:
    assert taken_for_probabilities(ast.parse(PROGRAM.format(call))) is None
