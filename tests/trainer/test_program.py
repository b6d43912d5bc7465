"""Tests of a training program: missing functions are named, and errors keep their traceback."""

from __future__ import annotations

import py_compile
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer import program
from services.trainer.program import BadProgram
from services.trainer.program_archive import pack_files, remove_folder

WHOLE = "\n".join(f"def {name}(*_): return 5" for name in program.REQUIRED)


@pytest.fixture(autouse=True)
def _clean_process(tmp_path: Path) -> Iterator[None]:
    path, writes_bytecode = list(sys.path), sys.dont_write_bytecode
    yield
    program._forget_helpers()
    sys.dont_write_bytecode = writes_bytecode
    assert sys.path == path
    remove_folder(tmp_path)


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


# ---------------------------------------------------------------- programs of several files

HELPED = f"""
from pathlib import Path

import helpers
from nets.blocks import WIDTH

{WHOLE}


def model(width=WIDTH):
    return width


def examples():
    return len((Path(__file__).parent / "data.csv").read_text())


mark = helpers.MARK
"""
FILES = {
    "main.py": HELPED.encode(),
    "helpers.py": b"MARK = 1\n",
    "nets/blocks.py": b"WIDTH = 7\n",
    "data.csv": b"1,2,3",
}


def unpacked(folder: Path, files: dict[str, bytes], entry: str = "main.py") -> tuple[Path, str]:
    body = pack_files(files)
    digest = program.program_digest(body)
    return program.write_program(body, "train", digest, entry, folder), digest


def load_folder(folder: Path, files: dict[str, bytes], **params: object) -> ModuleType:
    path, digest = unpacked(folder, files)
    return program.load(path, digest, "main.py", params)


def test_a_program_imports_its_own_modules_and_reads_its_own_files(tmp_path: Path) -> None:
    module = load_folder(tmp_path, FILES)

    assert (module.mark, module.model(), program.example_count(module)) == (1, 7, 5)
    assert not list(tmp_path.rglob("__pycache__"))


def test_the_entry_may_be_in_a_folder_of_the_program(tmp_path: Path) -> None:
    files = {
        "jobs/mine.py": f"import helpers, beside\n{WHOLE}\n".encode(),
        "jobs/beside.py": b"",
        "helpers.py": b"",
    }
    path, digest = unpacked(tmp_path, files, "jobs/mine.py")

    assert program.load(path, digest, "jobs/mine.py").model() == 5
    assert program.own_name(str(path)) == "jobs/mine.py"


def test_two_programs_in_one_process_do_not_share_their_helpers(tmp_path: Path) -> None:
    first = load_folder(tmp_path, FILES)
    other = {**FILES, "helpers.py": b"MARK = 2\n", "nets/blocks.py": b"WIDTH = 8\n"}
    second = load_folder(tmp_path, other)
    single = load(written(tmp_path, WHOLE))

    assert (first.mark, first.model(), second.mark, second.model()) == (1, 7, 2, 8)
    assert not hasattr(single, "mark") and "helpers" not in sys.modules


def test_what_a_helper_has_is_a_value_of_the_program_too(tmp_path: Path) -> None:
    helper = (
        b"MARK = 1\nLIMIT = 31_415\nLIST = [31_416]\nPAIR = (31_417, 0)\nDICT = {'a': 31_418}\n"
    )
    loaded = load_folder(tmp_path, {**FILES, "helpers.py": helper})
    values = [each for each in program.program_values(loaded) if isinstance(each, int)]
    assert {31_415, 31_416, 31_417, 31_418} <= set(values)


def test_a_helper_that_was_changed_in_the_pod_is_not_run(tmp_path: Path) -> None:
    path, digest = unpacked(tmp_path, FILES)
    helper = path.with_name("helpers.py")
    helper.chmod(0o644)
    helper.write_text("MARK = 3\n")

    with pytest.raises(BadProgram, match=r"^main\.py is not the requested program"):
        program.load(path, digest, "main.py")


def test_a_changed_folder_is_written_again(tmp_path: Path) -> None:
    path, digest = unpacked(tmp_path, FILES)
    helper = path.with_name("helpers.py")
    helper.chmod(0o644)
    helper.write_text("MARK = 3\n")

    assert program.write_program(pack_files(FILES), "train", digest, "main.py", tmp_path) == path
    assert program.load(path, digest, "main.py").mark == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"import os", "train: it is not a zip file, or a damaged one: "),
        (pack_files({"other.py": b""}), "train has no file main.py"),
    ],
)
def test_an_archive_that_is_no_program_is_refused(tmp_path: Path, body: bytes, reason: str) -> None:
    with pytest.raises(BadProgram, match=reason):
        program.write_program(body, "train", program.program_digest(body), "main.py", tmp_path)
    assert not list(tmp_path.iterdir())


def test_functions_get_the_parameters_of_the_job(tmp_path: Path) -> None:
    assert load_folder(tmp_path, FILES, width=9).model() == 9


def test_a_parameter_that_no_function_takes_fails_the_program(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match=r"params\.widht: no function of main\.py takes it; did"):
        load_folder(tmp_path, FILES, widht=9)


def test_a_program_that_reads_the_variable_in_any_file_takes_all_parameters(tmp_path: Path) -> None:
    reading = {**FILES, "helpers.py": b"MARK = 'WEIR_PARAMS'\n"}

    assert load_folder(tmp_path, reading, widht=9).model() == 7


def test_a_parameter_without_a_value_is_named_with_its_line(tmp_path: Path) -> None:
    text = HELPED.replace("def model(width=WIDTH)", "def model(width)")
    with pytest.raises(BadProgram, match=r"^model\(\) needs width: give it a default") as caught:
        load_folder(tmp_path, {**FILES, "main.py": text.encode()})

    assert caught.value.line == text.splitlines().index("def model(width):") + 1
    assert program.own_name(caught.value.file or "") == "main.py"


def test_files_of_a_program_are_known_in_every_pod() -> None:
    digest = f"sha256-{'a' * 64}"
    entry = f"/tmp/pod-1/{digest}/main.py"

    assert program.is_program_file(f"/tmp/pod-2/{digest}/nets/blocks.py", entry)
    assert program.own_name(f"/tmp/pod-2/{digest}/nets/blocks.py") == "nets/blocks.py"
    assert not program.is_program_file("/usr/lib/python3/helpers.py", entry)
    assert program.is_program_file("/a/program/net.py", "/b/program/net.py")
    assert not program.is_program_file("/a/program/other.py", "/b/program/net.py")
