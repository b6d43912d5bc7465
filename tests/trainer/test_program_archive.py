"""Tests of programs of several files: the archive depends on the files alone.

Nothing is written outside the program's folder.
"""

from __future__ import annotations

import hashlib
import io
import stat
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.program_archive import (
    MOST_FILES,
    BadArchive,
    holds_files,
    pack_files,
    path_fault,
    read_archive,
    remove_folder,
    write_folder,
)
from shared.messages import LARGEST_PROGRAM

FILES = {"main.py": b"import helpers\n", "helpers.py": b"", "nets/blöcke.py": b"x = 1\n"}
PARTS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=20)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
PROGRAMS = st.dictionaries(PATHS, st.binary(max_size=50), max_size=8)


def zipped(
    *entries: tuple[zipfile.ZipInfo | str, bytes], method: int = zipfile.ZIP_STORED
) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return body.getvalue()


def reasons(body: bytes) -> str:
    with pytest.raises(BadArchive) as caught:
        read_archive(body)
    return str(caught.value)


def test_the_digest_of_known_files_never_changes() -> None:
    """Jobs of earlier versions and other machines name programs by this digest."""
    digest = hashlib.sha256(pack_files(FILES)).hexdigest()

    assert digest == "b21c452c196f34278fde1f2334062e972f5d0ef02a0e873f20b00dbb8f49cec0"


@given(PROGRAMS)
def test_packed_files_are_read_back_and_their_order_does_not_count(files: dict[str, bytes]) -> None:
    try:
        body = pack_files(files)
    except BadArchive:
        return
    assert read_archive(body) == files
    assert pack_files(dict(reversed(files.items()))) == body


@given(PROGRAMS, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
def test_a_zip_file_of_another_program_has_the_same_digest_once_packed(
    files: dict[str, bytes], method: int
) -> None:
    try:
        body = pack_files(files)
    except BadArchive:
        return
    assert pack_files(read_archive(zipped(*files.items(), method=method))) == body


@given(PROGRAMS)
def test_files_are_written_below_their_folder_and_read_only(files: dict[str, bytes]) -> None:
    try:
        read = read_archive(pack_files(files))
    except BadArchive:
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "program"
        write_folder(read, folder)
        found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}

        assert set(found) == set(files) and list(Path(place).iterdir()) == [folder]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o444 for path in found.values())
        assert holds_files(folder, files)
        remove_folder(folder)
        assert not folder.exists()


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        read_archive(body)
    except BadArchive as error:
        assert str(error)


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=4))
def test_any_damage_is_read_or_refused(at: int, damage: bytes) -> None:
    body = bytearray(zipped(*FILES.items(), method=zipfile.ZIP_DEFLATED))
    at %= len(body)
    body[at : at + len(damage)] = damage
    try:
        files = read_archive(bytes(body))
    except BadArchive:
        return
    assert all(not path_fault(path) for path in files)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x.py",
        "a/../../x.py",
        "./x.py",
        "a//b.py",
        "a\\b.py",
        "a\nb.py",
        "\udce9.py",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    assert path_fault(path)
    with pytest.raises(BadArchive, match="a path "):
        pack_files({path: b""})


@pytest.mark.parametrize("path", ["x" * 201 + ".py", "/".join(["folder"] * 80)])
def test_a_path_that_is_too_long_is_refused(path: str) -> None:
    assert path_fault(path) == "a path has at most 500 bytes, and each part 200"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.py", "a/../../x.py"])
def test_a_path_in_a_foreign_archive_is_refused(path: str) -> None:
    assert reasons(zipped((path, b""))) == (
        f"{path}: a path is relative to the program's folder, without `.` and `..`"
    )


def test_a_link_is_refused() -> None:
    link = zipfile.ZipInfo("data.csv")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16

    assert reasons(zipped((link, b"/etc/passwd"))) == (
        "data.csv is a link: put the file itself there"
    )


def test_a_file_that_is_a_folder_too_is_refused() -> None:
    assert reasons(zipped(("a", b""), ("a/b.py", b""))) == "a is a file and a folder"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_refused() -> None:
    assert reasons(zipped(("a.py", b""), ("a.py", b"x"))) == "a.py occurs twice"


def test_more_than_a_program_may_have_is_refused_before_it_is_unpacked() -> None:
    bomb = zipped(("data", bytes(LARGEST_PROGRAM + 1)), method=zipfile.ZIP_DEFLATED)

    assert len(bomb) < LARGEST_PROGRAM / 100
    assert reasons(bomb).startswith("its files have 16.0 MiB; at most 16 MiB are allowed.")


def test_too_many_files_are_refused() -> None:
    many = {f"{number}.txt": b"" for number in range(MOST_FILES + 1)}

    with pytest.raises(BadArchive, match="it has 2,001 files; at most 2,000 files are allowed"):
        pack_files(many)


def test_every_reason_is_given() -> None:
    body = zipped(("../a", b""), ("/b", b""))

    assert reasons(body).count("a path is relative") == 2


def test_a_compression_that_no_zip_program_needs_is_refused() -> None:
    assert "compressed in a way" in reasons(zipped(("a.py", b"x"), method=zipfile.ZIP_LZMA))


def test_an_existing_folder_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    write_folder({"old.py": b"", "nets/a.py": b""}, folder)
    write_folder({"new.py": b""}, folder)

    assert [path.name for path in folder.iterdir()] == ["new.py"]
    assert list(tmp_path.iterdir()) == [folder]
    assert not holds_files(folder, {"old.py": b""}) and not holds_files(folder, {"new.py": b"x"})
