"""A program of several files: one archive in the store, one folder in the pod.

The archive is a zip file that depends only on the names and contents of the files, so that the same
files have the same digest on every machine: sorted names, no times, no owners, no compression
(compressors differ between machines).

Law: an archive is checked before anything of it is written. A path is relative, has no `..` and
leads through no link; the files together are not larger than a program may be. The submitting side
and the pod use the same check, because a handwritten request may name any bytes.
"""

from __future__ import annotations

import io
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from shared.messages import LARGEST_PROGRAM
from shared.text import format_count

Files = Mapping[str, bytes]
"""The content of each file, by its path within the program."""
MOST_FILES = 2_000
MOST_REASONS = 10
"""Maximum number of reasons against an archive that are listed."""
LONGEST_PATH = 500
"""Maximum bytes of the path of a file within the program."""
LONGEST_PART = 200
"""Maximum bytes of each part of a path; file systems allow 255."""
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can store; every file gets it."""
UNIX = 3
MIB = 1 << 20
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""The errors of `zipfile` for bytes that are no zip file, or a damaged one."""


class BadArchive(ValueError):
    """The files cannot be a program; the text has a line for each reason."""

    def __init__(self, reasons: Iterable[str]) -> None:
        known = list(dict.fromkeys(reasons))
        shown = known[:MOST_REASONS]
        if len(known) > MOST_REASONS:
            shown.append(f"... and {len(known) - MOST_REASONS} more")
        super().__init__("\n".join(shown))


# ---------------------------------------------------------------- the archive


def pack_files(files: Files) -> bytes:
    """Return the archive of these files. Raise `BadArchive` with every reason against them."""
    sizes = [(path, len(body)) for path, body in files.items()]
    if reasons := list(file_reasons(sizes)):
        raise BadArchive(reasons)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, EARLIEST)
            entry.create_system = UNIX
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, files[path])
    body = packed.getvalue()
    if len(body) > LARGEST_PROGRAM:
        raise BadArchive([size_reason(len(body))])
    return body


def read_archive(body: bytes) -> dict[str, bytes]:
    """Return the files in a zip file, also in one of another program. Raise `BadArchive` if it
    cannot be read, or with every reason against it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            reasons = list(_entry_reasons(entries))
            reasons += file_reasons([(entry.filename, entry.file_size) for entry in entries])
            if not reasons:
                return {entry.filename: _read_entry(archive, entry) for entry in entries}
    except UNREADABLE as error:
        raise BadArchive([f"it is not a zip file, or a damaged one: {error}"]) from error
    raise BadArchive(reasons)


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of a file. No more than its declared size is decompressed."""
    with archive.open(entry) as file:
        return file.read(entry.file_size)


def _entry_reasons(entries: Iterable[zipfile.ZipInfo]) -> Iterator[str]:
    """Yield the reasons against entries that are no plain files."""
    for entry in entries:
        mode = entry.external_attr >> 16
        if entry.flag_bits & 1:
            yield f"{_shown(entry.filename)} is encrypted"
        elif entry.compress_type not in METHODS:
            yield f"{_shown(entry.filename)} is compressed in a way that Weir does not read"
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            kind = "a link" if stat.S_ISLNK(mode) else "no file"
            yield f"{_shown(entry.filename)} is {kind}: put the file itself there"


def file_reasons(sizes: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield the reasons against the paths, the number and the sizes of files."""
    known = set[str]()
    folders = set[str]()
    total = 0
    for path, size in sizes:
        if fault := path_fault(path):
            yield f"{_shown(path)}: {fault}"
        elif path in known:
            yield f"{path} occurs twice"
        known.add(path)
        folders.update(str(parent) for parent in PurePosixPath(path).parents)
        total += size
    for path in sorted(known & folders):
        yield f"{_shown(path)} is a file and a folder"
    if len(known) > MOST_FILES:
        yield f"it has {len(known):,} files; at most {format_count(MOST_FILES, 'file')} are allowed"
    if total > LARGEST_PROGRAM:
        yield size_reason(total)


def size_reason(size: int) -> str:
    return (
        f"its files have {size / MIB:.1f} MiB; at most {LARGEST_PROGRAM // MIB} MiB are allowed."
        " Data belongs on a volume, not in the program."
    )


def path_fault(path: str) -> str:
    """Return why a file of a program cannot have this path; empty if it can."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path:
        return "a path has no backslash and no character that cannot be printed"
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "a path is relative to the program's folder, without `.` and `..`"
    if len(path.encode()) > LONGEST_PATH or max(len(p.encode()) for p in parts) > LONGEST_PART:
        return f"a path has at most {LONGEST_PATH} bytes, and each part {LONGEST_PART}"
    return ""


def _shown(path: str) -> str:
    return path if path.isprintable() and path else ascii(path)


# ---------------------------------------------------------------- the folder


def write_folder(files: Files, folder: Path) -> None:
    """Write the files into a new folder that is then read-only, or replace an existing folder.

    A process that reads the existing folder meanwhile finds the old or the new files.
    """
    part = folder.with_name(f".{folder.name}.part")
    old = folder.with_name(f".{folder.name}.old")
    for leftover in (part, old):
        remove_folder(leftover)
    part.mkdir(parents=True)
    for path, body in files.items():
        file = part / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        file.chmod(0o444)
    for made in [part, *part.rglob("*")]:
        if made.is_dir():
            made.chmod(0o555)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    remove_folder(old)


def holds_files(folder: Path, files: Files) -> bool:
    """Return whether a folder has these files, unchanged. Other files in it do not count."""
    try:
        return all((folder / path).read_bytes() == body for path, body in files.items())
    except OSError:
        return False


def remove_folder(folder: Path) -> None:
    """Remove a folder and everything in it, also read-only folders; nothing if there is none."""
    for made in [folder, *folder.rglob("*")]:
        if made.is_dir() and not made.is_symlink():
            made.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
