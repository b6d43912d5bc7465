"""Tests of failure causes without TensorFlow.

They come from any pod, have any length, and follow from any number of exceptions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.program import BadProgram
from services.trainer.worker import failure_cause

HERE = "/tmp/weir-trainer-a/sha256-1/net.py"
THERE = HERE.replace("trainer-a", "trainer-b")


def raised(text: str, path: str = HERE) -> BaseException:
    """Return the exception that running this text as this file raises."""
    with pytest.raises(BaseException) as caught:
        exec(compile(text, path, "exec"), {})
    return caught.value


def test_without_a_program_frame_a_cause_has_a_headline_and_the_traceback() -> None:
    told = failure_cause.describe_failure(raised("raise KeyError('x')", "/lib/other.py"), HERE)

    assert (
        told.startswith("KeyError: 'x'\nTraceback (most recent call last):\n")
        and "test_failure_cause.py" in told
    )


def test_the_first_exception_comes_before_its_consequences() -> None:
    told = failure_cause.describe_failure(
        raised("try:\n    {}['row']\nexcept KeyError as e:\n    raise OSError('no data') from e\n"),
        HERE,
    )

    first, *rest = told.splitlines()
    assert first == "net.py:4: OSError: no data"
    assert [line for line in rest if line.startswith(("KeyError", "which", "OSError"))] == [
        *("KeyError: 'row'", "which led to:", "OSError: no data")
    ]


def test_a_cause_from_a_worker_in_another_folder_is_the_same() -> None:
    sent = failure_cause.mark_failure(
        raised("def f():\n    raise LookupError('burnt')\nf()", THERE), THERE
    )
    arrived = RuntimeError(
        f"Graph execution error: Failed: {sent}\n\t [[{{{{node PyFunc}}}}]] Additional GRPC error"
    )

    assert failure_cause.describe_failure(arrived, HERE) == failure_cause.describe_failure(
        raised("def f():\n    raise LookupError('burnt')\nf()"), HERE
    )


def test_the_same_file_in_another_pods_folder_is_the_program() -> None:
    assert failure_cause.describe_failure(raised("1 / 0", THERE), HERE).startswith(
        "net.py:1: ZeroDivisionError: division by zero\n"
    )


def test_a_file_with_the_same_name_elsewhere_is_not_the_program() -> None:
    assert failure_cause.describe_failure(raised("1 / 0", "/lib/net.py"), HERE).startswith(
        "ZeroDivisionError: division by zero\n"
    )


FOLDER = f"/tmp/weir-trainer-a/sha256-{'a' * 64}"
ENTRY = f"{FOLDER}/main.py"


def test_a_failure_in_another_file_of_the_program_has_its_path_there() -> None:
    blocks = f"{FOLDER.replace('trainer-a', 'trainer-b')}/nets/blocks.py"
    told = failure_cause.describe_failure(raised("def f():\n    1 / 0\nf()", blocks), ENTRY)

    first, *rest = told.splitlines()
    assert first == "nets/blocks.py:2: ZeroDivisionError: division by zero"
    assert [line.strip() for line in rest if "File" in line] == [
        'File "nets/blocks.py", line 3, in <module>',
        'File "nets/blocks.py", line 2, in f',
    ]


def test_a_syntax_error_in_another_file_of_the_program_has_its_place() -> None:
    told = failure_cause.describe_failure(raised("y = = 2\n", f"{FOLDER}/helpers.py"), ENTRY)

    assert told.startswith(
        'helpers.py:1: SyntaxError: invalid syntax\n  File "helpers.py", line 1\n'
    )


def test_a_folder_of_the_program_may_have_the_name_of_a_library() -> None:
    told = failure_cause.describe_failure(raised("1 / 0", f"{FOLDER}/keras/blocks.py"), ENTRY)

    assert told.startswith("keras/blocks.py:1: ZeroDivisionError")


def test_a_function_at_fault_has_the_file_that_it_is_in() -> None:
    made = {}
    exec(compile("\n\ndef dataset(): ...", f"{FOLDER}/helpers.py", "exec"), made)

    told = failure_cause.describe_failure(BadProgram("it gave nothing", made["dataset"]), ENTRY)

    assert told == "helpers.py:3: it gave nothing"


@pytest.mark.parametrize("longest", [300, 2_000])
def test_a_long_cause_keeps_its_beginning_and_end(longest: int) -> None:
    told = failure_cause.describe_failure(
        raised(f"raise ValueError('too long' + '\\nx' * {longest} + ' the end')"), HERE, longest
    )

    assert (
        len(told) == longest
        and told.startswith("net.py:1: ValueError: too long\n")
        and told.endswith(" the end")
    )


def test_missing_functions_are_named_without_weirs_frames() -> None:
    assert (
        failure_cause.describe_failure(BadProgram("net.py lacks loss()"), HERE)
        == "net.py lacks loss()"
    )


def test_a_syntax_error_has_its_line_and_position(tmp_path: Path) -> None:
    told = failure_cause.describe_failure(raised("x = 1\ny = = 2\n"), HERE)

    assert told.startswith('net.py:2: SyntaxError: invalid syntax\n  File "net.py", line 2\n')


@pytest.mark.parametrize(
    "text", ["", "\n", "in user code:\n\n", 'File "', "[[weir: the program failed]]", "\x00" * 9]
)
def test_any_exception_gives_a_cause(text: str) -> None:
    assert failure_cause.describe_failure(RuntimeError(text), HERE).startswith("RuntimeError")


OF_KERAS = """Graph execution error:

Detected at node model/embedding/GatherV2 defined at (most recent call last):
  File "/lib/threading.py", line 1002, in _bootstrap

  File "/lib/keras/src/layers/core/embedding.py", line 196, in call

indices[0,0] = 90 is not in [0, 4)
\t [[{{node model/embedding/GatherV2}}]]"""
OF_WEIR = """in user code:

    File "/lib/services/trainer/worker/training_step.py", line 37, in _update  *
        built.optimizer.apply_gradients(zip(gradients, weights, strict=True))
    File "/lib/keras/src/optimizers/base_optimizer.py", line 860, in _filter_empty_gradients
        raise ValueError("No gradients provided for any variable.")

    ValueError: No gradients provided for any variable.
"""
OF_NOBODY = """Graph execution error:

Detected at node Reshape defined at (most recent call last):
<stack traces unavailable>
Input to reshape is a tensor with 16 values, but the requested shape requires a multiple of 7
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OF_KERAS, "ValueError: indices[0,0] = 90 is not in [0, 4)"),
        (OF_WEIR, "ValueError: No gradients provided for any variable."),
        (OF_NOBODY, "ValueError: Input to reshape is a tensor with 16 values, but"),
    ],
)
def test_without_a_program_line_the_failed_operation_comes_first(text: str, says: str) -> None:
    assert failure_cause.describe_failure(ValueError(text), HERE).startswith(says)


def test_the_name_of_a_dataset_transformation_is_removed() -> None:
    where = (
        f'Detected at node X defined at (most recent call last):\n  File "{HERE}", line 7, in'
        " shift\n\n"
    )
    passed = (
        "Error in user-defined function passed to MapDataset:2 transformation with iterator:"
        " Iterator::Root::Map: "
    )

    told = failure_cause.describe_failure(
        RuntimeError(f"{where}{{{{function_node f}}}} {passed}indices = 9 is not in [0, 1)"), HERE
    )

    assert told.startswith("net.py:7: RuntimeError: indices = 9 is not in [0, 1)\n")
