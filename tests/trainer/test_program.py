"""A training program: what is missing is named, what breaks keeps its own traceback."""

from __future__ import annotations

import py_compile
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer import program
from services.trainer.program import BadProgram

WHOLE = "\n".join(f"def {name}(*_): return 5" for name in program.REQUIRED)


def written(folder: Path, text: str) -> Path:
    path = folder / "net.py"
    path.write_text(text)
    return path


def load(path: Path) -> ModuleType:
    return program.load(path, program.program_digest(path.read_bytes()))


def test_a_program_with_all_five_functions_is_loaded(tmp_path: Path) -> None:
    assert program.example_count(load(written(tmp_path, WHOLE))) == 5


def test_every_missing_function_is_named_at_once(tmp_path: Path) -> None:
    text = "def model(): ...\ndef examples(): ...\nloss = 'not a function'"

    with pytest.raises(BadProgram, match=r"net\.py lacks optimizer\(\), loss\(\), dataset\(\)"):
        load(written(tmp_path, text))


def test_an_import_error_has_the_programs_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        load(written(tmp_path, "x = 1\ny = x / 0"))

    assert caught.traceback[-1].path.name == "net.py" and caught.traceback[-1].lineno == 1


def test_a_file_without_python_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text("hello")

    with pytest.raises(BadProgram, match=r"net\.txt is not a Python file"):
        load(tmp_path / "net.txt")


@pytest.mark.parametrize("count", ["0", "-1", "2.0", "'many'", "None"])
def test_an_invalid_number_of_examples_is_an_error(tmp_path: Path, count: str) -> None:
    module = load(written(tmp_path, f"{WHOLE}\ndef examples(): return {count}"))

    with pytest.raises(BadProgram, match="a whole number of at least 1"):
        program.example_count(module)


def test_the_faulty_function_has_its_line(tmp_path: Path) -> None:
    module = load(written(tmp_path, f"{WHOLE}\n\ndef examples(): return 0"))

    with pytest.raises(BadProgram) as caught:
        program.example_count(module)

    assert caught.value.line == len(program.REQUIRED) + 2


def test_a_program_changed_after_the_download_is_not_run(tmp_path: Path) -> None:
    path, ran = written(tmp_path, WHOLE), tmp_path / "ran"
    digest = program.program_digest(path.read_bytes())
    written(tmp_path, f"{WHOLE}\nopen({str(ran)!r}, 'w')")

    with pytest.raises(BadProgram, match=r"^net\.py is not the requested program"):
        program.load(path, digest)
    assert not ran.exists()


def test_stale_bytecode_is_not_used(tmp_path: Path) -> None:
    path = written(tmp_path, f"{WHOLE}\nmark = 'old'")
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    written(tmp_path, f"{WHOLE}\nmark = 'new'")

    assert load(path).mark == "new"


def test_two_programs_with_one_name_are_separate_modules(tmp_path: Path) -> None:
    first = load(written(tmp_path, f"{WHOLE}\nmark = 1"))
    second = load(written(tmp_path, WHOLE))

    assert first.mark == 1 and not hasattr(second, "mark")


def test_checking_a_program_imports_no_tensorflow() -> None:
    imports = (
        "import sys; from services.trainer import program; from services.trainer.pod import service"
    )
    code = f"{imports}; sys.exit('tensorflow' in sys.modules)"

    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
    )


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("net.py", "net.py"),
        ("../../etc/net.py", "net.py"),
        ("..\\net.py", "net.py"),
        ("..", "program"),
        ("/", "program"),
        ("a\0b\n.py", "a_b_.py"),
        ("é" * 200 + ".py", "é" * 98 + ".py"),
    ],
)
def test_a_program_keeps_its_name_as_far_as_the_file_system_allows(asked: str, kept: str) -> None:
    assert program.safe_file_name(asked) == kept


@given(st.text(min_size=1, max_size=200))
def test_any_program_name_gives_a_file_name(asked: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / program.safe_file_name(asked)
        path.write_bytes(b"")

        assert [path] == list(Path(folder).iterdir())
