"""What can be told of a program without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.program_file import check_program
from services.console.trouble import WRONG_USE, Trouble
from services.trainer.program import REQUIRED

WHOLE = "".join(f"def {name}(*_): ...\n" for name in REQUIRED)
PATH = Path("jobs") / "mine.py"


def wrong(text: str | bytes) -> str:
    with pytest.raises(Trouble) as told:
        check_program(text if isinstance(text, bytes) else text.encode(), PATH)
    assert told.value.code == WRONG_USE
    return str(told.value)


def test_a_syntax_error_has_file_and_line() -> None:
    assert wrong(WHOLE + "def more(:\n    ...\n") == "jobs/mine.py:6: invalid syntax"
    assert wrong(WHOLE + "\nreturn 3\n") == "jobs/mine.py:7: 'return' outside function"


def test_missing_functions_are_named_as_by_the_trainer() -> None:
    assert (
        wrong("def model(): ...\ndef loss(a, b): ...\n")
        == "mine.py lacks optimizer(), examples(), dataset()"
    )
    assert wrong("") == f"mine.py lacks {', '.join(f'{name}()' for name in REQUIRED)}"


@pytest.mark.parametrize(
    "bound",
    [
        "from there import model",
        "from there import build as model",
        "model = lambda: 3",
        "try:\n    from there import model\nexcept ImportError:\n    def model(): ...",
        "def later():\n    global model\n    model = print",
        "class model: ...",
        "from there import *",
        "globals().update(there)",
    ],
)
def test_a_function_may_be_bound_in_any_way(bound: str) -> None:
    check_program((WHOLE.replace("def model(*_): ...\n", "") + bound).encode(), PATH)


def test_nested_functions_do_not_count() -> None:
    inside = "def outer():\n    def model(): ...\n"

    assert wrong(WHOLE.replace("def model(*_): ...\n", inside)) == "mine.py lacks model()"


def test_overwriting_weights_with_averages_is_refused_by_name() -> None:
    text = WHOLE + "made = SGD(use_ema=True, ema_overwrite_frequency={})\n"

    assert wrong(text.format(100)).startswith(
        "jobs/mine.py:6: ema_overwrite_frequency, which Weir does not support"
    )
    assert wrong(text.format("EVERY")).startswith("jobs/mine.py:6: ema_overwrite_frequency")
    check_program(text.format(None).encode(), PATH)


def test_checking_a_program_runs_nothing() -> None:
    check_program(f"{WHOLE}import no_such_library\nraise SystemExit('run')\n".encode(), PATH)


@pytest.mark.parametrize("body", [b"\x00", b"\xff\xfe", b"# coding: none\n", b"(" * 5000])
def test_a_file_that_is_no_python_is_an_error_without_a_traceback(body: bytes) -> None:
    assert wrong(body).startswith("jobs/mine.py")


def test_a_programs_encoding_declaration_is_used() -> None:
    check_program(b"# coding: latin-1\n" + WHOLE.encode() + b"name = '\xe9'\n", PATH)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("def dataset(start): ...", "dataset is called as dataset(start, stop)"),
        ("def dataset(start, stop, more): ...", "dataset is called as dataset(start, stop)"),
        ("def model(size): ...", "model is called as model()"),
        ("def loss(labels, outputs, *, weight): ...", "loss is called as loss(labels, outputs)"),
    ],
)
def test_a_function_with_a_wrong_signature_has_its_line(function: str, reason: str) -> None:
    assert wrong(f"{WHOLE}\n{function}\n") == f"jobs/mine.py:7: {reason}"


@pytest.mark.parametrize(
    "function",
    [
        "def dataset(start, stop, size=3): ...",
        "def dataset(*which): ...",
        "@cached\ndef dataset(): ...",
        "dataset = print",
    ],
)
def test_a_function_may_have_optional_parameters(function: str) -> None:
    check_program(f"{WHOLE}\n{function}\n".encode(), PATH)
