"""Tests of the parameters of a job: each function gets those that it names; none is ignored."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

from services.trainer.program import (
    accepts_call,
    bind_params,
    missing_params,
    param_reasons,
    signature_of,
)

FUNCTIONS = ("model", "optimizer", "loss", "dataset", "evaluation")


def module_of(text: str) -> ModuleType:
    module = ModuleType("program")
    exec(text, vars(module))
    return module


def bound(text: str, **params: Any) -> ModuleType:
    module = module_of(text)
    bind_params(module, FUNCTIONS, params)
    return module


def reasons(text: str, reads_variable: bool = False, **params: Any) -> list[str]:
    module = module_of(text)
    known = {name: signature_of(vars(module)[name]) for name in FUNCTIONS if name in vars(module)}
    return list(param_reasons("mine.py", known, params, reads_variable))


def test_a_function_gets_the_parameters_that_it_names() -> None:
    program = bound(
        "def model(width=1, *, depth=1): return width, depth\n"
        "def optimizer(learning_rate=0.1): return learning_rate\n"
        "def loss(labels, outputs, smoothing): return labels, outputs, smoothing\n",
        width=8,
        depth=2,
        smoothing=0.5,
    )

    assert program.model() == (8, 2)
    assert program.optimizer() == 0.1
    assert program.loss("labels", "outputs") == ("labels", "outputs", 0.5)


def test_keywords_of_any_name_get_all_parameters() -> None:
    program = bound("def model(width=1, **more): return width, more\n", width=8, depth=2)

    assert program.model() == (8, {"depth": 2})


def test_calls_within_the_program_have_the_parameters_unless_they_give_them() -> None:
    program = bound(
        "def dataset(start, stop, noise=0.0): return noise\n"
        "def evaluation(): return dataset(0, 1), dataset(0, 1, 0.1), dataset(0, 1, noise=0.2)\n",
        noise=0.9,
    )

    assert program.evaluation() == (0.9, 0.1, 0.2)


def test_a_bound_function_is_still_described_by_its_own_code() -> None:
    program = bound("def dataset(numbers, noise=0.0, *, size=2): return noise\n", noise=0.9)

    assert program.dataset.__code__.co_firstlineno == 1 and program.dataset.__name__ == "dataset"
    first, *rest = inspect.signature(program.dataset).parameters.values()
    assert first.name == "numbers" and all(each.kind is each.KEYWORD_ONLY for each in rest)


def test_functions_without_parameters_stay_as_they_are() -> None:
    module = module_of("def model(): return 3\nmetrics = print\n")
    model = module.model
    bind_params(module, ("model", "metrics"), {"width": 3})

    assert module.model is model


def test_a_parameter_that_nobody_takes_is_refused_with_the_names_that_are_taken() -> None:
    text = "def model(width=1): ...\ndef optimizer(learning_rate=0.1): ...\n"

    assert reasons(text, learning_rat=1) == [
        "params.learning_rat: no function of mine.py takes it; did you mean 'learning_rate'?"
    ]
    assert reasons(text, xyz=1) == [
        "params.xyz: no function of mine.py takes it; they take model(width),"
        " optimizer(learning_rate)"
    ]
    assert reasons("def model(): ...\n", width=1) == [
        "params.width: no function of mine.py takes it; name it where it is used, as in"
        " `def optimizer(width=...):`"
    ]


@pytest.mark.parametrize("name", ["start", "labels", "file", "batch", "numbers"])
def test_an_argument_that_weir_gives_is_no_parameter(name: str) -> None:
    assert reasons("def model(**more): ...\n", **{name: 1}) == [
        f"params.{name}: Weir itself gives an argument of this name; take another one"
    ]


def test_own_names_of_the_first_arguments_are_no_parameters() -> None:
    (reason,) = reasons("def loss(truth, guess, weight=1): ...\n", truth=1)

    assert reason == "params.truth: no function of mine.py takes it; they take loss(weight)"


def test_a_program_that_reads_the_variable_may_have_any_parameter() -> None:
    assert reasons("def model(): ...\n", reads_variable=True, path="/data") == []
    assert len(reasons("def model(): ...\n", reads_variable=True, start=1)) == 1


def test_a_parameter_without_a_default_is_required() -> None:
    signature = signature_of(module_of("def model(width, depth=1, *, kind): ...\n").model)

    assert missing_params("model", signature, {"depth": 2}) == ["width", "kind"]
    assert not accepts_call("model", signature, {"width": 1})
    assert accepts_call("model", signature, {"width": 1, "kind": "x"})


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("def dataset(start, stop): ...", True),
        ("def dataset(start, stop, size=3): ...", True),
        ("def dataset(numbers): ...", True),
        ("def dataset(numbers, noise=0): ...", True),
        ("def dataset(*which): ...", True),
        ("def dataset(start): ...", False),
        ("def dataset(start, stop, more): ...", False),
        ("def dataset(): ...", False),
    ],
)
def test_a_function_takes_the_arguments_that_weir_gives(text: str, accepted: bool) -> None:
    assert accepts_call("dataset", signature_of(module_of(text).dataset), {}) is accepted
