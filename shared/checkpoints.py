"""The checkpoint folder of a job, and the files beside its checkpoints.

Law: no two jobs ever have the same folder. Its name has the namespace, the job, its uid and the
time of its acceptance. A uid is a stream sequence, so it repeats after the bus was lost; together
with the time it is unique. The namespace is the first part, so that no request can name a folder of
another namespace.

    gen-3/ckpt-480.index       TensorFlow's own files
    gen-3/ckpt-480.committed   the ledger has this checkpoint: `CommitMark`
    job/request.json           the job's request
    job/program                the bytes of its program

Law: a mark is written after the ledger has named its checkpoint, never before. So a marked
checkpoint that is newer than those of the ledger shows that the ledger was set back; one without a
mark may be from a generation that was fenced.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from shared.messages import JobRequested

EXAMPLE = "digits-12-20261123t043512"
STAMP = "%Y%m%dt%H%M%S"
OWN_FOLDER = re.compile(r"[a-z][-a-z0-9]*-\d+(-\d{8}t\d{6})?")
"""The form of the last part of a job's folder. Version 0.1.0 wrote no time."""


def new_checkpoint_folder(request: JobRequested, uid: int, accepted_s: float) -> str:
    """Return the folder of a job that is accepted now, relative to the cluster's folder or to the
    URL of its path.
    """
    path = request.checkpoint.path or ""
    below = "" if "://" in path else path
    stamp = datetime.fromtimestamp(accepted_s, UTC).strftime(STAMP)
    return posixpath.join(request.namespace, below, f"{request.job}-{uid}-{stamp}")


def checkpoint_location(request: JobRequested, uid: int, folder: str) -> str:
    """Return the place of a job's checkpoints: a path relative to the cluster's folder, or a URL.

    `folder`: the one that the job was accepted with; empty for jobs of version 0.1.0, which used
    the path itself.
    """
    path = request.checkpoint.path or ""
    if not folder:
        return path or f"{request.namespace}/{request.job}-{uid}"
    return posixpath.join(path, folder) if "://" in path else folder


def is_in_namespace(folder: str, namespace: str) -> bool:
    """Return True if a path or URL names a job's folder in this namespace."""
    _, _, below = folder.rpartition("://")
    parts = below.strip("/").split("/")
    if not OWN_FOLDER.fullmatch(parts[-1]):
        return False
    if "://" in folder:
        return len(parts) > 2 and parts[-2] == namespace
    return len(parts) > 1 and parts[0] == namespace


INDEX, COMMITTED = ".index", ".committed"
JOB = "job"
REQUEST = "job/request.json"
PROGRAM = "job/program"


class CommitMark(msgspec.Struct, frozen=True, kw_only=True):
    """The digest of a checkpoint in the ledger. `samples`: the applied ones of `total_samples`;
    None: unknown.
    """

    digest: str
    samples: int | None = None
    total_samples: int | None = None

    @property
    def finished(self) -> bool:
        return self.samples is not None and self.samples == self.total_samples


def checkpoint_digest(index: bytes, sizes: Iterable[tuple[str, int]]) -> str:
    """Return the digest of a checkpoint: of its index, and of the names and sizes of its other
    files.
    """
    return f"sha256-{hashlib.sha256(index + msgspec.json.encode(sorted(sizes))).hexdigest()}"


def is_in_digest(name: str) -> bool:
    """Return True if the size of this file is part of a checkpoint's digest."""
    return not name.endswith((INDEX, COMMITTED))


def checkpoint_step(path: str) -> int:
    """Return the step of a checkpoint, by its path; -1 if the path is not that of a checkpoint."""
    number = path.rpartition("/ckpt-")[2]
    return int(number) if number.isdecimal() else -1


def restore_candidates(named: Sequence[str], marked: Iterable[str]) -> tuple[str, ...]:
    """Return the checkpoints to restore from, the best first: marked ones that are newer than all
    in the ledger, then those in the ledger, in its order.
    """
    newest = max(map(checkpoint_step, named), default=-1)
    newer = sorted(
        (path for path in marked if checkpoint_step(path) > newest),
        key=checkpoint_step,
        reverse=True,
    )
    return (*newer, *named)
