"""Tests of programs as a file, a folder or a zip file: what is uploaded, and what is refused."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from services.cli.program_source import ProgramSource, read_program
from services.console.trouble import Trouble
from services.trainer.program_archive import pack_files, read_archive
from shared.bus.programs import digest_of

MAIN = "def model(): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "train"
    (made / "nets").mkdir(parents=True)
    (made / "main.py").write_text(MAIN)
    (made / "nets" / "blocks.py").write_text("WIDTH = 7\n")
    (made / "words.txt").write_text("a\nb\n")
    return made


def files_of(source: ProgramSource) -> list[str]:
    return sorted(source.files)


def trouble(path: Path) -> str:
    with pytest.raises(Trouble) as caught:
        read_program(path)
    return str(caught.value)


def test_a_file_is_stored_as_it_is(folder: Path) -> None:
    source = read_program(folder / "main.py")

    assert source.body == MAIN.encode() and source.entry == "main.py"
    assert source.reference == {"name": "main.py", "digest": digest_of(MAIN.encode())}


def test_a_folder_is_stored_as_the_archive_of_its_files(folder: Path) -> None:
    source = read_program(folder)

    assert files_of(source) == ["main.py", "nets/blocks.py", "words.txt"]
    assert source.reference == {"name": "train", "digest": source.digest, "entry": "main.py"}
    assert read_archive(source.body) == source.files


def test_the_same_files_have_the_same_digest_wherever_and_whenever(
    folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    for file in copy.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o700)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"x")
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", folder)
    nested = shutil.make_archive(str(tmp_path / "nested"), "zip", tmp_path, "train")

    digests = {read_program(Path(each)).digest for each in (folder, copy, packed, nested)}

    assert len(digests) == 1


def test_a_zip_file_has_the_name_that_it_has(folder: Path, tmp_path: Path) -> None:
    packed = Path(shutil.make_archive(str(tmp_path / "mine"), "zip", folder))

    assert read_program(packed).name == "mine.zip"


def test_the_entry_may_be_named_after_a_colon(folder: Path) -> None:
    (folder / "mine.py").write_text(MAIN)

    assert read_program(Path(f"{folder}:mine.py")).entry == "mine.py"
    assert read_program(Path(f"{folder}:nets/blocks.py")).entry == "nets/blocks.py"
    assert trouble(Path(f"{folder}:none.py")) == (
        f"the program {folder} has no file none.py; its Python files: main.py, mine.py,"
        " nets/blocks.py"
    )


def test_without_main_the_only_file_with_a_model_is_the_entry(folder: Path) -> None:
    (folder / "main.py").rename(folder / "mine.py")
    (folder / "helpers.py").write_text("def clean(x): ...\n")

    assert read_program(folder).entry == "mine.py"

    (folder / "other.py").write_text("from nets.blocks import build as model\n")
    assert trouble(folder) == (
        f"{folder} has no main.py; name the file that has model(): `{folder}:FILE`. At the top"
        " level there are mine.py and other.py with model()"
    )


def test_a_folder_without_a_program_is_refused(tmp_path: Path) -> None:
    assert trouble(tmp_path).endswith("At the top level there is no Python file")


def test_the_current_folder_has_its_own_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    assert read_program(Path(".")).name == "train"


def test_what_git_ignores_is_left_out_as_git_does(folder: Path) -> None:
    """Rules of parent folders in the repository apply first; those of subfolders override them."""
    root = folder.parent
    (root / ".git").mkdir()
    (root / ".gitignore").write_text("*.log\n/train/secret.txt\nruns/\n# a comment\n")
    (folder / ".gitignore").write_text("!keep.log\n/nets/*.npy\n")
    (folder / "runs").mkdir()
    for name in ("a.log", "keep.log", "secret.txt", "runs/1.txt", "nets/w.npy", "w.npy"):
        (folder / name).write_text("x")

    source = read_program(folder)

    assert files_of(source) == [
        ".gitignore", "keep.log", "main.py", "nets/blocks.py", "w.npy", "words.txt",
    ]  # fmt: skip
    assert source.left_out == ("a.log", "nets/w.npy", "runs/", "secret.txt")


def test_rules_above_that_ignore_the_whole_program_do_not_count(folder: Path) -> None:
    (folder.parent / ".git").mkdir()
    (folder.parent / ".gitignore").write_text("train/\n")

    assert read_program(folder).left_out == ()


def test_folders_above_count_only_in_a_repository(folder: Path) -> None:
    (folder.parent / ".gitignore").write_text("*.txt\n")

    assert "words.txt" in files_of(read_program(folder))


def test_rules_in_a_zip_file_count(folder: Path, tmp_path: Path) -> None:
    (folder / ".gitignore").write_text("*.txt\n")
    packed = Path(shutil.make_archive(str(tmp_path / "mine"), "zip", folder))

    source = read_program(packed)

    assert source.left_out == ("words.txt",) and source.digest == read_program(folder).digest


@pytest.mark.parametrize("target", ["/etc/passwd", "main.py", "nets"])
def test_a_link_is_refused(folder: Path, target: str) -> None:
    (folder / "link").symlink_to(target)

    assert trouble(folder) == (
        f"the program {folder}: link is a link: put the file itself there, or leave it out by"
        " .gitignore"
    )


def test_an_ignored_link_is_left_out(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    (folder / ".gitignore").write_text("link\n")

    assert read_program(folder).left_out == ("link",)


def test_a_pipe_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    assert trouble(folder) == f"the program {folder}: pipe is neither a file nor a folder"


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(folder: Path) -> None:
    with (folder / "data.npy").open("wb") as file:
        file.truncate(20 << 20)  # a sparse file: no data is written or read

    assert trouble(folder) == (
        f"the program {folder}: its files have 20.0 MiB; at most 16 MiB are allowed. Data belongs"
        f" on a volume, not in the program.\nthe program {folder}: the largest are data.npy"
        " (20.0 MiB), main.py (0.0 MiB), nets/blocks.py (0.0 MiB); .gitignore leaves files out"
    )


def test_a_folder_of_too_many_files_is_refused_with_where_they_are(folder: Path) -> None:
    (folder / "venv").mkdir()
    for number in range(2_000):
        (folder / "venv" / f"{number}.py").touch()

    assert "the most are in venv (2,000), main.py (1), nets (1)" in trouble(folder)


def test_a_damaged_zip_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.zip").write_bytes(b"PK\3\4 and no more")

    assert "it is not a zip file, or a damaged one" in trouble(tmp_path / "mine.zip")


def test_a_zip_file_with_a_path_outside_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("main.py", MAIN)
        archive.writestr("../main.py", MAIN)

    assert "../main.py: a path is relative to the program's folder" in trouble(
        tmp_path / "mine.zip"
    )


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert trouble(tmp_path / "none").startswith(f"cannot read the program {tmp_path / 'none'}: No")


def test_the_archive_of_a_folder_is_that_of_the_trainer(folder: Path) -> None:
    source = read_program(folder)

    assert source.body == pack_files(source.files)
