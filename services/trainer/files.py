"""The files of checkpoints, wherever TensorFlow can write: a folder, a shared volume, an object
store by its URL. Edge.

A digest pins every byte of a checkpoint without reading it again: TensorFlow computes a checksum
(CRC-32C) of each variable's bytes while it writes, on the ps, and keeps them in the index; the
digest is over the index and the names and sizes of the other files. So whole files with the digest
of old, and checksums that fit while they are restored, are the very bytes that were written; and
neither saving nor restoring waits for a second look at all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import tensorflow as tf

from services.trainer import retention
from shared import checkpoints
from shared.checkpoints import COMMITTED, INDEX, CommitMark

gfile = tf.io.gfile


class Seal(NamedTuple):
    """What the ledger keeps of a checkpoint: `sha256-<hex>`, and its size in bytes."""

    digest: str
    bytes: int


def seal(path: str) -> Seal:
    """Of a checkpoint that is whole; raises `tf.errors.OpError` where it is not there."""
    with gfile.GFile(path + INDEX, "rb") as index:
        body = index.read()
    folder = path.rpartition("/")[0]
    counted = [name for name in _parts(path) if checkpoints.is_in_digest(name)]
    sizes = [(name, int(gfile.stat(f"{folder}/{name}").length)) for name in counted]
    return Seal(
        checkpoints.checkpoint_digest(body, sizes), len(body) + sum(size for _, size in sizes)
    )


def wrong(path: str, digest: str) -> str:
    """Why a checkpoint is not the one with this digest ("": none is known); empty where nothing is
    wrong so far.
    """
    try:
        found = seal(path)
    except tf.errors.NotFoundError:
        return "it is missing"
    except tf.errors.OpError as error:
        return f"it cannot be read: {error.message}"
    return (
        "it is torn: its files are not those that were written"
        if digest not in ("", found.digest)
        else ""
    )


def checkpoints_in(folder: str) -> list[str]:
    """Return the paths of all checkpoints in a job's folder that have an index, the newest
    first.
    """
    found = []
    for generation in _listed(folder):
        if retention.generation(generation) is not None:
            names = _listed(f"{folder}/{generation}")
            found += [
                f"{folder}/{generation}/{name.removesuffix(INDEX)}"
                for name in names
                if name.endswith(INDEX)
            ]
    ages = {path: age for path in found if (age := retention.age(path)) is not None}
    return sorted(ages, key=lambda path: ages[path], reverse=True)


def mark_committed(path: str, committed: CommitMark) -> None:
    """Write beside a checkpoint that the ledger has named it, unless that is written or the
    checkpoint is gone.
    """
    if gfile.exists(path + INDEX) and not gfile.exists(path + COMMITTED):
        _write(path + COMMITTED, msgspec.json.encode(committed))


def committed_in(folder: str) -> dict[str, str]:
    """Return the digests of all checkpoints in a job's folder that the ledger has named at some
    time, by path.

    A mark that was not written to its end counts as none.
    """
    digests = {}
    for path in checkpoints_in(folder):
        with (
            contextlib.suppress(tf.errors.OpError, msgspec.DecodeError),
            gfile.GFile(path + COMMITTED, "rb") as file,
        ):
            digests[path] = msgspec.json.decode(file.read(), type=CommitMark).digest
    return digests


def keep_job(folder: str, request: bytes, program: str) -> None:
    """Write the job's request and program beside its checkpoints, unless they are there; `program`:
    a file here.
    """
    if gfile.exists(f"{folder}/{checkpoints.REQUEST}"):
        return
    make_folder(f"{folder}/{checkpoints.JOB}")
    with gfile.GFile(program, "rb") as file:
        _write(f"{folder}/{checkpoints.PROGRAM}", file.read())
    _write(f"{folder}/{checkpoints.REQUEST}", request)


def _write(path: str, body: bytes) -> None:
    with gfile.GFile(path, "wb") as file:
        file.write(body)


def make_folder(path: str) -> None:
    gfile.makedirs(path)


def remove(path: str) -> None:
    """All files of a checkpoint, also of one that is only begun; what cannot be removed stays."""
    with contextlib.suppress(tf.errors.OpError):
        for name in _parts(path):
            _remove(f"{path.rpartition('/')[0]}/{name}")


def prune(folder: str, kept: Sequence[str]) -> None:
    """Remove what `retention` says of all that lies in the generations' folders, and the folders
    that this empties.
    """
    for generation in _listed(folder):
        number = retention.generation(generation)
        if number is None:
            continue
        inside = f"{folder}/{generation}"
        for name in _listed(inside):
            if retention.goes(number, name, kept):
                with contextlib.suppress(tf.errors.OpError):
                    _remove(f"{inside}/{name}")
        if retention.over(number, kept) and not _listed(inside):
            with contextlib.suppress(tf.errors.OpError):
                gfile.rmtree(inside)


def _parts(path: str) -> Iterator[str]:
    """The names of a checkpoint's files, and of the folder in which they are begun."""
    folder, _, name = path.rpartition("/")
    return (
        found
        for found in _listed(folder)
        if found.startswith(f"{name}.") or found == f"{name}_temp"
    )


def _listed(folder: str) -> list[str]:
    """What lies in a folder; some file systems put a stroke behind a folder's name."""
    try:
        return [name.rstrip("/") for name in gfile.listdir(folder)]
    except tf.errors.OpError:
        return []


def _remove(path: str) -> None:
    if gfile.isdir(path):
        gfile.rmtree(path)
    else:
        gfile.remove(path)
