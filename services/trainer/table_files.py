"""The files that hold the tables of a checkpoint: a base with all rows, and deltas after it.

Each delta has the rows that changed since the file before it. A checkpoint names the files before
its own, with their digests, so that a missing or damaged one is found before it is restored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

TABLE_FILES = "weir/table_files"
"""The key of a checkpoint's tensor with its `EarlierFiles`. Earlier versions did not write it."""
PARTS = 1024
"""The number of parts of a table (`table_layout.py`). Another number has to be a multiple of the
earlier ones: then the blocks of an earlier base begin where parts begin today.
"""
EARLIER_PARTS = 256
"""The number of parts in files that do not name it."""
MOST_DELTAS = 64
MOST_DELTA_BYTES = 2.0
"""Of the bytes of the base. After that a new base is written."""
BASE_FILE = re.compile(r"base-(\d+)(?:_temp|\..+)")
GENERATION_PATH = re.compile(r"gen-(\d+)/(?:base|ckpt)-(\d+)$")


class TableFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file with rows of tables. `path`: within the job's folder.

    `ps`: the number of ps that wrote a delta; 0: it has all rows. `parts`: of each table when
    a delta was written. `in_blocks`: all rows are stored in blocks. `rows`, `bytes`: of the tables;
    a row counts with its slots as one. `follows`: the digest of the last file before a base was
    begun; the delta after the base has what changed since that file.
    """

    path: str
    digest: str
    rows: int = 0
    bytes: int = 0
    ps: int = 0
    parts: int = EARLIER_PARTS
    in_blocks: bool = True
    follows: str = ""


class EarlierFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """The table files before that of a checkpoint, the base first; none: it has all rows itself.
    `rows`, `bytes`, `ps`, `parts`: of its own `TableFile`. `keys`: of the tensors of each table, and
    then of its slots, in a delta.
    """

    files: tuple[TableFile, ...] = ()
    rows: int = 0
    bytes: int = 0
    ps: int = 0
    parts: int = EARLIER_PARTS
    keys: tuple[tuple[str, ...], ...] = ()


def path_in_job(path: str) -> str:
    """Return a checkpoint's path within the folder of its job: "gen-3/ckpt-480"."""
    return "/".join(path.split("/")[-2:])


def job_folder(path: str) -> str:
    """Return the folder of the job whose checkpoint this is."""
    return path.rsplit("/", 2)[0]


def file_path(checkpoint: str, file: TableFile) -> str:
    """Return the path of a file that a checkpoint with this path names."""
    return f"{job_folder(checkpoint)}/{file.path}"


def files_to_read(held: Sequence[TableFile], wanted: Sequence[TableFile]) -> tuple[TableFile, ...]:
    """Return the files that bring tables with the rows of `held` to those of `wanted`: the last
    ones of these, or all.
    """
    if held and len(wanted) > 1 and wanted[0].follows == held[-1].digest:
        return tuple(wanted[1:])
    digests = [each.digest for each in wanted]
    if held and held[-1].digest in digests:
        return tuple(wanted[digests.index(held[-1].digest) + 1 :])
    return tuple(wanted)


def needs_base(files: Sequence[TableFile]) -> bool:
    """Return whether there is no base, or so many deltas that a new one is worth its cost."""
    if not files:
        return True
    base, deltas = files[0], files[1:]
    return len(deltas) >= MOST_DELTAS or (
        sum(each.bytes for each in deltas) > MOST_DELTA_BYTES * base.bytes
    )


def is_obsolete_base(number: int, name: str, bases: Iterable[str]) -> bool:
    """Return whether a base of this generation can be removed. `bases`: the paths of the files with
    all rows that the kept checkpoints need.

    A base that is later than the earliest one in use may still be in progress.
    """
    found = BASE_FILE.fullmatch(name)
    ages = [age for path in bases if (age := file_age(path)) is not None]
    if found is None or not ages:
        return False
    return (number, int(found[1])) < min(ages)


def file_age(path: str) -> tuple[int, int] | None:
    """Return the generation and step of a file's path; None if it is not that of one."""
    found = GENERATION_PATH.search(path)
    return (int(found[1]), int(found[2])) if found else None
