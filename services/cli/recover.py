"""`weir recover FOLDER`: after a loss of the bus, list the jobs that can continue from their
checkpoints, and submit them again.

A job's folder holds its request, its program, and a mark beside each committed checkpoint
(`shared/checkpoints.py`). A checkpoint is complete if its files have the digest in its mark.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from services.cli import connection, program_file
from services.cli.command_line import (
    CHECKPOINTS,
    FILE,
    Arguments,
    argument,
    command,
    flag,
    nats_option,
)
from services.console.bus_reader import read_entries
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from shared import checkpoints
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import ORDERS, pattern
from shared.checkpoints import COMMITTED, INDEX, PROGRAM, REQUEST, CommitMark
from shared.messages import LARGEST_PROGRAM, JobAccepted, JobRejected, JobRequested
from shared.text import format_count, single_line

EXAMPLES = (
    "weir recover",
    "weir recover --resume",
    "weir recover /checkpoints --print > lost.jsonl",
    "weir recover lost.jsonl --resume",
)
ANSWERS: tuple[type[JobAccepted | JobRejected], ...] = (JobAccepted, JobRejected)
ANSWER_S = 30.0


@command(EXAMPLES, exclusive=("resume", "print"))
@nats_option
@argument(
    "folder",
    type=FILE,
    required=False,
    default=CHECKPOINTS,
    metavar="[FOLDER]",
    help=f"the checkpoints of all jobs, or the output of --print (default: {CHECKPOINTS})",
)
@flag("--resume", help="submit again the jobs that can continue")
@flag("--print", help="only print the jobs as JSON, to use it where the bus can be reached")
def run(args: Arguments) -> int:
    found = find_remains(args.folder)
    if args.print:
        sys.stdout.writelines(f"{msgspec.json.encode(each).decode()}\n" for each in found)
        return DONE
    return connection.on_bus(args, partial(recover_jobs, found))


async def recover_jobs(found: list[Remains], bus: Bus, args: Arguments) -> int:
    known = await known_folders(bus)
    lost = [each for each in found if each.folder not in known]
    print_table(found, known)
    can_go_on = [each for each in lost if is_resumable(each)]
    if not args.resume:
        if can_go_on:
            print(
                f"\n`weir recover {args.folder} --resume` submits the jobs that can continue, "
                "each with its newest checkpoint"
            )
        return DONE
    errors = []
    for job in can_go_on:
        error = await resume_job(bus, job)
        if error:
            errors.append(error)
    for error in errors:
        print(error, file=sys.stderr)
    return FAILED if errors else DONE


def print_table(found: Iterable[Remains], known: set[str]) -> None:
    rows = [(each.name, describe_progress(each), describe_standing(each, known)) for each in found]
    if not rows:
        print("no jobs found here")
    name_width = max((len(row[0]) for row in rows), default=0)
    progress_width = max((len(row[1]) for row in rows), default=0)
    for name, progress, standing in rows:
        print(f"{single_line(name):<{name_width}}  {progress:<{progress_width}}  {standing}")


def describe_progress(job: Remains) -> str:
    if job.step < 0:
        return "-"
    if job.samples is None or job.total_samples is None:
        return f"step {job.step:,}"
    return f"step {job.step:,}, {job.samples:,} of {format_count(job.total_samples, 'example')}"


def describe_standing(job: Remains, known: set[str]) -> str:
    """Return the state of a job in words."""
    if job.folder in known:
        return "not lost: on the bus"
    if job.step < 0:
        return "lost: no complete checkpoint"
    return "finished" if job.is_finished else "can continue"


def is_resumable(job: Remains) -> bool:
    return job.step >= 0 and not job.is_finished


async def known_folders(bus: Bus) -> set[str]:
    """Return the folders of all jobs on the bus, and the folders from which they continue."""
    folders: set[str] = set()
    async for entry in read_entries(
        bus, [StreamQuery(ORDERS, [pattern(JobAccepted)])], follow=False
    ):
        if isinstance(entry.message, JobAccepted):
            folders |= {
                entry.message.checkpoint_folder,
                entry.message.request.checkpoint.continue_from or "",
            }
    return folders


async def resume_job(bus: Bus, job: Remains) -> str:
    """Submit the job again, from its newest checkpoint. Return the error, empty if it is
    accepted.
    """
    request = job.request
    if program_file.digest(job.program) != request.program.digest:
        return (
            f"{job.name}: its stored program is damaged; submit it with `checkpoint.continue_from:"
            f" {job.folder}`"
        )
    try:
        digest = await program_file.store_program(bus, job.program, request.namespace)
    except Trouble as trouble:
        return f"{job.name}: {trouble}"
    again = replace(
        request,
        request_id=uuid.uuid4().hex,
        program=replace(request.program, digest=digest),
        checkpoint=replace(request.checkpoint, continue_from=job.folder),
    )
    uid = await bus.request(again)
    answer = await connection.first_message(
        bus, ANSWERS, uid, lambda each: each.uid == uid, ANSWER_S
    )
    if isinstance(answer, JobAccepted):
        print(f"job {job.name} continues from step {job.step:,} (uid {uid})", flush=True)
        return ""
    if isinstance(answer, JobRejected):
        reasons = [f"  - {single_line(reason)}" for reason in answer.reasons]
        return "\n".join([f"{job.name} is refused:", *reasons])
    return (
        f"{job.name}: no answer within {ANSWER_S:g} s; the request is stored and will be answered"
    )


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one job. `folder`: the value for `checkpoint.continue_from`. `step`: of the
    newest complete checkpoint, -1 if there is none.
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
    def is_finished(self) -> bool:
        return self.samples is not None and self.samples == self.total_samples


def find_remains(place: Path) -> list[Remains]:
    """Return the jobs below a folder of checkpoints, or in a file written by `--print`, sorted by
    name.
    """
    try:
        found = _read_remains(place) if place.is_file() else list(_remains_below(place))
    except (OSError, msgspec.DecodeError) as error:
        raise Trouble(f"cannot read {place}: {error}", WRONG_USE) from error
    if not place.exists():
        raise Trouble(f"there is no {place}: give the folder of the checkpoints", WRONG_USE)
    return sorted(found, key=lambda each: (each.name, each.folder))


def _read_remains(file: Path) -> list[Remains]:
    return [msgspec.json.decode(line, type=Remains) for line in file.read_bytes().splitlines()]


def _remains_below(place: Path) -> Iterator[Remains]:
    """Yield the jobs below a folder. Their files are not trusted, because jobs write them: the
    namespace is that of the folder, so a request with another one is left out.
    """
    for file in sorted(place.rglob(REQUEST)):
        home = file.parents[1]
        folder = home.relative_to(place).as_posix()
        with contextlib.suppress(msgspec.DecodeError, OSError):
            request = msgspec.json.decode(file.read_bytes(), type=JobRequested)
            is_too_large = (home / PROGRAM).stat().st_size > LARGEST_PROGRAM
            program = b"" if is_too_large else (home / PROGRAM).read_bytes()
            if checkpoints.is_in_namespace(folder, request.namespace):
                step, mark = _newest_checkpoint(home)
                yield Remains(
                    folder=folder,
                    request=request,
                    program=program,
                    step=step,
                    samples=mark.samples if mark else None,
                    total_samples=mark.total_samples if mark else None,
                )


def _newest_checkpoint(home: Path) -> tuple[int, CommitMark | None]:
    """Return the step and the mark of the newest complete checkpoint; -1 and None without one."""
    marks = sorted(home.glob(f"gen-*/ckpt-*{COMMITTED}"), key=_step_of_mark)
    for file in reversed(marks):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            mark = msgspec.json.decode(file.read_bytes(), type=CommitMark)
            if mark.digest == _checkpoint_digest(_checkpoint_path(file)):
                return _step_of_mark(file), mark
    return -1, None


def _step_of_mark(mark: Path) -> int:
    return checkpoints.checkpoint_step(_checkpoint_path(mark))


def _checkpoint_path(mark: Path) -> str:
    return mark.as_posix().removesuffix(COMMITTED)


def _checkpoint_digest(path: str) -> str:
    index = Path(f"{path}{INDEX}")
    sizes = []
    for file in index.parent.glob(f"{index.stem}.*"):
        if checkpoints.is_in_digest(file.name):
            sizes.append((file.name, file.stat().st_size))
    return checkpoints.checkpoint_digest(index.read_bytes(), sizes)
