"""What lies beside a job's checkpoints, so that the job can go on when its bus has lost something.
Pure.

    gen-3/ckpt-480.index       TensorFlow's own files
    gen-3/ckpt-480.committed   the ledger has named this checkpoint: `Committed`
    job/request.json           the job's request
    job/program                the bytes of its program

Law: a mark is written when the ledger has named its checkpoint, never before. So a marked
checkpoint that is newer than those of the ledger shows that the ledger was set back; one without a
mark may be that of a generation that was fenced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

INDEX, COMMITTED = ".index", ".committed"
JOB = "job"
REQUEST = "job/request.json"
PROGRAM = "job/program"


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The digest that the ledger has of a checkpoint. `samples`: applied of `total_samples`; None:
    unknown.
    """

    digest: str
    samples: int | None = None
    total_samples: int | None = None

    @property
    def finished(self) -> bool:
        return self.samples is not None and self.samples == self.total_samples


def digest(index: bytes, sizes: Iterable[tuple[str, int]]) -> str:
    """Return the digest of a checkpoint: of its index, and of the names and sizes of its other
    files.
    """
    return f"sha256-{hashlib.sha256(index + msgspec.json.encode(sorted(sizes))).hexdigest()}"


def counts(name: str) -> bool:
    """Return whether a file of a checkpoint is one of those whose sizes are in its digest."""
    return not name.endswith((INDEX, COMMITTED))


def step(path: str) -> int:
    """Return the step of a checkpoint, by its path; -1 for a path that is none."""
    number = path.rpartition("/ckpt-")[2]
    return int(number) if number.isdecimal() else -1


def candidates(named: Sequence[str], marked: Iterable[str]) -> tuple[str, ...]:
    """Return the checkpoints to restore from, the best first: marked ones newer than all that the
    ledger names, then those that it names, in its order.
    """
    newest = max(map(step, named), default=-1)
    newer = sorted((path for path in marked if step(path) > newest), key=step, reverse=True)
    return (*newer, *named)
