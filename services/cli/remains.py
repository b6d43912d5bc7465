"""What the checkpoint folders say of jobs, when the bus that knew them is lost. Edge: it reads
files.

A job's folder holds its request, its program, and marks beside the checkpoints that its ledger has
named (`shared/checkpoints.py`). A checkpoint is complete where its files have the digest of
its mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.cli.trouble import WRONG_USE, Trouble
from shared import checkpoints
from shared.checkpoints import COMMITTED, INDEX, PROGRAM, REQUEST, CommitMark
from shared.messages import LARGEST_PROGRAM, JobRequested


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `folder`: for `checkpoint.continue_from`; `step`: of its newest complete checkpoint,
    -1: none.
    """

    folder: str
    request: JobRequested
    program: bytes
    step: int = -1
    samples: int | None = None
    total_samples: int | None = None

    @property
    def name(self) -> str:
        return f"{self.request.namespace}/{self.request.job}"

    @property
    def finished(self) -> bool:
        return self.samples is not None and self.samples == self.total_samples


def remains_in(place: Path) -> list[Remains]:
    """Return the jobs below a folder of checkpoints, or in a file that `--print` made; in the order
    of their names.
    """
    try:
        found = _written(place) if place.is_file() else list(_below(place))
    except (OSError, msgspec.DecodeError) as error:
        raise Trouble(f"cannot read {place}: {error}", WRONG_USE) from error
    if not place.exists():
        raise Trouble(f"there is no {place}: give the folder of the checkpoints", WRONG_USE)
    return sorted(found, key=lambda each: (each.name, each.folder))


def _written(file: Path) -> list[Remains]:
    return [msgspec.json.decode(line, type=Remains) for line in file.read_bytes().splitlines()]


def _below(place: Path) -> Iterator[Remains]:
    """What a job wrote itself is read with care: its folder, and not its request, says whose it
    is.
    """
    for file in sorted(place.rglob(REQUEST)):
        home = file.parents[1]
        folder = home.relative_to(place).as_posix()
        with contextlib.suppress(msgspec.DecodeError, OSError):
            request = msgspec.json.decode(file.read_bytes(), type=JobRequested)
            program = (
                (home / PROGRAM).read_bytes()
                if (home / PROGRAM).stat().st_size <= LARGEST_PROGRAM
                else b""
            )
            if checkpoints.is_in_namespace(folder, request.namespace):
                step, mark = _newest(home)
                samples, total = (mark.samples, mark.total_samples) if mark else (None, None)
                yield Remains(
                    folder=folder,
                    request=request,
                    program=program,
                    step=step,
                    samples=samples,
                    total_samples=total,
                )


def _newest(home: Path) -> tuple[int, CommitMark | None]:
    """Return the step and the mark of the newest checkpoint that is complete; -1 and None where
    there is none.
    """
    marks = sorted(
        home.glob(f"gen-*/ckpt-*{COMMITTED}"),
        key=lambda file: checkpoints.checkpoint_step(_path(file)),
    )
    for file in reversed(marks):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            mark = msgspec.json.decode(file.read_bytes(), type=CommitMark)
            if mark.digest == _digest(_path(file)):
                return checkpoints.checkpoint_step(_path(file)), mark
    return -1, None


def _path(mark: Path) -> str:
    return mark.as_posix().removesuffix(COMMITTED)


def _digest(path: str) -> str:
    index = Path(f"{path}{INDEX}")
    parts = [
        file for file in index.parent.glob(f"{index.stem}.*") if checkpoints.is_in_digest(file.name)
    ]
    return checkpoints.checkpoint_digest(
        index.read_bytes(), [(file.name, file.stat().st_size) for file in parts]
    )
