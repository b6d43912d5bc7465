"""How loss() takes labels and outputs: slips of shape, and outputs that are no probabilities. Pure.

A hint is given only where the shapes themselves, or the library's own words, leave nothing else
that could be meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from services.cli.diagnosis.finding import Finding, wrong
from services.trainer.examined import Examined, Shape

LOSS = "loss"
CROSS_ENTROPY = re.compile(r"(sparse_)?(categorical|binary)_?crossentropy", re.IGNORECASE)
OF_SHAPE = re.compile(
    r"Incompatible shapes|Dimensions must be equal|must have the same (shape|rank)"
)
NUMBERS = "labels are numbers of classes, which keras.losses.sparse_categorical_crossentropy takes"
ONE_HOT = "labels have a number for each class, which keras.losses.categorical_crossentropy takes"
KNOWN = (
    (
        r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)",
        "outputs tell {1} classes apart, counted from 0, and a label is {0}: give the last layer an output for each",
    ),
    (
        r"(?s)target\.shape=\((\w+),\), output\.shape=\(\1, (?!1\))\d+\).*\bcategorical_crossentropy",
        NUMBERS,
    ),
    (
        r"`target\.ndim - 1`\. Received: target\.shape=\((\w+), (\d+)\), output\.shape=\(\1, \2\)",
        ONE_HOT,
    ),
)
"""What a library says, and what to do."""


def mended(cause: str, here: Examined) -> str:
    """What to do about a failure in loss(); empty where that is not sure."""
    for pattern, remedy in KNOWN:
        if match := re.search(pattern, cause):
            return remedy.format(*match.groups())
    return (
        slipped(here.labels, here.outputs)
        if OF_SHAPE.search(cause) and f"in {LOSS}\n" in cause
        else ""
    )


def slipped(labels: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> str:
    """How to make one shape of two, where an axis of one is missing, or the last ones differ."""
    if len(labels) != 1 or len(outputs) != 1:
        return ""
    asked, given = labels[0], outputs[0]
    if given[-1:] == (1,) and given[:-1] == asked:
        return f"labels are {asked} and outputs {given}: take {_wider('labels', asked)} in loss()"
    if asked[-1:] == (1,) and asked[:-1] == given:
        return f"labels are {asked} and outputs {given}: take {_wider('outputs', given)} in loss()"
    if len(asked) > 1 and asked[:-1] == given[:-1] and asked[-1] != given[-1]:
        return f"a label has {asked[-1]} numbers and an output {given[-1]}: give the last layer {asked[-1]}"
    return ""


def _wider(name: str, shape: Shape) -> str:
    return f"{name}[{', '.join([':'] * len(shape))}, None]"


# ---------------------------------------------------------------- probabilities


def of_probabilities(tree: ast.Module, name: str, here: Examined) -> Iterator[Finding]:
    """Where a cross-entropy is given the outputs as they are, without `from_logits`, and they go
    beyond 0 and 1.
    """
    line = taken_for_probabilities(tree)
    if line and here.span and not (here.span[0] >= 0.0 and here.span[1] <= 1.0):
        low, high = (f"{value:.3g}" for value in here.span)
        what = f"{name}:{line}: loss() takes outputs for probabilities, and they go from {low} to {high}"
        yield wrong(
            what,
            "from_logits=True there, or a last layer with activation='softmax' ('sigmoid' for one output)",
        )


def taken_for_probabilities(tree: ast.Module) -> int | None:
    """The line of loss() that does; None where it does not, or where that is not plain to see."""
    made = [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and n.name == LOSS and len(n.args.args) == 2
    ]
    for call in (
        node for function in made[-1:] for node in ast.walk(function) if isinstance(node, ast.Call)
    ):
        outputs = made[-1].args.args[1].arg
        given = [each.id for each in call.args if isinstance(each, ast.Name)]
        if (
            len(call.args) == 2
            and given[-1:] == [outputs]
            and _plain(call)
            and not _assigned(made[-1], outputs)
        ):
            return call.lineno
    return None


def _plain(call: ast.Call) -> bool:
    """`keras.losses.binary_crossentropy(..., ...)`, or `keras.losses.BinaryCrossentropy()(...,
    ...)`.
    """
    maker = call.func if isinstance(call.func, ast.Call) else call
    if maker is not call and maker.args:
        return False
    given = {keyword.arg for keyword in (*call.keywords, *maker.keywords)}
    named = ast.unparse(maker.func)
    ours = named.startswith(("keras.", "tf.keras."))
    return (
        ours
        and bool(CROSS_ENTROPY.fullmatch(named.rpartition(".")[2]))
        and not given & {"from_logits", None}
    )


def _assigned(function: ast.FunctionDef, name: str) -> bool:
    """Whether the function makes something else of it first."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Store) for node in names)
