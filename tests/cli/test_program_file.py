"""Tests of the checks of a program's text, which do not run the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.program_file import check_program, check_source
from services.cli.program_source import ProgramSource
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
        (
            "def dataset(start, stop, more): ...",
            "dataset is called as dataset(start, stop); give more a default, or a value in"
            " `params:`",
        ),
        ("def model(size): ...", "model is called as model()"),
        (
            "def loss(labels, outputs, *, weight): ...",
            "loss is called as loss(labels, outputs); give weight a default, or a value in"
            " `params:`",
        ),
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


# ---------------------------------------------------------------- parameters and several files


def wrong_params(text: str, **params: object) -> str:
    with pytest.raises(Trouble) as told:
        check_program(text.encode(), PATH, params)
    return str(told.value)


TAKING = f"{WHOLE}def optimizer(learning_rate=0.1): ...\ndef model(width): ...\n"


def test_a_parameter_that_no_function_takes_is_refused() -> None:
    check_program(TAKING.encode(), PATH, {"learning_rate": 1, "width": 2})

    assert wrong_params(TAKING, learning_rat=1, width=2, start=3) == (
        "params.learning_rat: no function of mine.py takes it; did you mean 'learning_rate'?\n"
        "params.start: Weir itself gives an argument of this name; take another one"
    )


def test_a_parameter_without_a_value_is_named() -> None:
    assert wrong_params(TAKING) == (
        "jobs/mine.py:7: model is called as model(); give width a default, or a value in `params:`"
    )


@pytest.mark.parametrize(
    "more",
    [
        "def model(**params): ...",
        "from there import model",
        "@cached\ndef model(): ...",
        "if True:\n    def model(width): ...",
        "from there import *",
        "import os\nparams = os.environ['WEIR_PARAMS']",
    ],
)
def test_parameters_are_not_refused_where_the_text_does_not_tell(more: str) -> None:
    check_program(f"{WHOLE}\n{more}\n".encode(), PATH, {"width": 1})


def source(files: dict[str, str], entry: str = "main.py") -> ProgramSource:
    return ProgramSource(
        path=Path("train"),
        name="train",
        body=b"",
        entry=entry,
        packed=True,
        files={name: text.encode() for name, text in files.items()},
    )


def wrong_source(files: dict[str, str], entry: str = "main.py", **params: object) -> str:
    with pytest.raises(Trouble) as told:
        check_source(source(files, entry), params)
    return str(told.value)


def test_a_syntax_error_in_any_file_has_its_place() -> None:
    assert wrong_source({"main.py": WHOLE, "nets/blocks.py": "x = = 1\n"}) == (
        "train/nets/blocks.py:1: invalid syntax"
    )


def test_functions_in_other_files_are_read_where_they_are_imported_from() -> None:
    files = {
        "jobs/main.py": f"{WHOLE}from nets import build as model\nfrom beside import optimizer\n",
        "jobs/beside.py": "def optimizer(rate=1): ...\n",
        "nets/__init__.py": "from nets.blocks import build\n",
        "nets/blocks.py": "\ndef build(width): ...\n",
    }

    check_source(source(files, "jobs/main.py"), {"width": 1, "rate": 2})
    assert wrong_source(files, "jobs/main.py", rat=2) == (
        "train/nets/blocks.py:2: model is called as model(); give width a default, or a value in"
        " `params:`\nparams.rat: no function of main.py takes it; did you mean 'rate'?"
    )


def test_files_that_import_each_other_end_the_search() -> None:
    files = {
        "main.py": f"{WHOLE}from other import model\n",
        "other.py": "from main import model\n",
    }

    check_source(source(files), {"width": 1})
