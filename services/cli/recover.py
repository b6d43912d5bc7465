"""`weir recover FOLDER`: after a loss of the bus, say which jobs can go on from their checkpoints,
and let them.

What the checkpoint folders say of jobs, when the bus that knew them is lost. Edge: it reads
files.

A job's folder holds its request, its program, and marks beside the checkpoints that its ledger has
named (`shared/checkpoints.py`). A checkpoint is complete where its files have the digest of
its mark.
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

from services.cli import connection, job_status, program_file
from services.cli.command_line import FILE, Arguments, argument, command, flag, nats_option
from services.console.log_reader import read_entries
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from shared import checkpoints
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import ORDERS, pattern
from shared.checkpoints import COMMITTED, INDEX, PROGRAM, REQUEST, CommitMark
from shared.messages import LARGEST_PROGRAM, JobAccepted, JobRejected, JobRequested, Program
from shared.text import format_count, single_line

EXAMPLES = (
    "weir recover",
    "weir recover --resume",
    "weir recover /checkpoints --print > lost.jsonl",
    "weir recover lost.jsonl --resume",
)
CHECKPOINTS = Path(".weir/checkpoints")
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
@flag("--resume", help="submit again the jobs that can go on")
@flag("--print", help="only print the jobs found as JSON, for a machine that reaches the bus")
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
                f"\n`weir recover {args.folder} --resume` asks for what can go on, each with its newest checkpoint"
            )
        return DONE
    troubles = [trouble for each in can_go_on if (trouble := await resume_job(bus, each))]
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    return FAILED if troubles else DONE


def print_table(found: Iterable[Remains], known: set[str]) -> None:
    rows = [(each.name, describe_progress(each), describe_standing(each, known)) for each in found]
    if not rows:
        print("no job has left anything here")
    wide = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for name, how_far, how in rows:
        print(f"{single_line(name):<{wide[0]}}  {how_far:<{wide[1]}}  {how}")


def describe_progress(job: Remains) -> str:
    if job.step < 0:
        return "-"
    if job.samples is None or job.total_samples is None:
        return f"step {job.step:,}"
    return f"step {job.step:,}, {job.samples:,} of {format_count(job.total_samples, 'example')}"


def describe_standing(job: Remains, known: set[str]) -> str:
    """Return in words what can become of a job."""
    if job.folder in known:
        return "the bus knows it"
    if job.step < 0:
        return "lost: no complete checkpoint"
    return "finished" if job.is_finished else "can go on"


def is_resumable(job: Remains) -> bool:
    return job.step >= 0 and not job.is_finished


async def known_folders(bus: Bus) -> set[str]:
    """Return the folders of all jobs that the bus knows, and of those that another job has gone on
    with.
    """
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
    """Ask for the job again, from its newest checkpoint; return why it is refused, or nothing."""
    request = job.request
    if program_file.digest(job.program) != request.program.digest:
        return f"{job.name}: its program was not kept whole; submit it with `checkpoint.continue_from: {job.folder}`"
    try:
        digest = await program_file.store_program(bus, job.program, request.namespace)
    except Trouble as trouble:
        return f"{job.name}: {trouble}"
    again = replace(
        request,
        request_id=uuid.uuid4().hex,
        program=Program(name=request.program.name, digest=digest),
        checkpoint=replace(request.checkpoint, continue_from=job.folder),
    )
    uid = await bus.request(again)
    answer = await job_status.first_message(
        bus, ANSWERS, uid, lambda each: each.uid == uid, ANSWER_S
    )
    if isinstance(answer, JobAccepted):
        print(f"job {job.name} goes on from step {job.step:,} (uid {uid})", flush=True)
        return ""
    if isinstance(answer, JobRejected):
        return "\n".join(
            [
                f"{job.name} is refused:",
                *(f"  - {single_line(reason)}" for reason in answer.reasons),
            ]
        )
    return f"{job.name}: no answer within {ANSWER_S:g} s; the request stays stored"


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
    def is_finished(self) -> bool:
        return self.samples is not None and self.samples == self.total_samples


def find_remains(place: Path) -> list[Remains]:
    """Return the jobs below a folder of checkpoints, or in a file that `--print` made; in the order
    of their names.
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
                step, mark = _newest_checkpoint(home)
                samples, total = (mark.samples, mark.total_samples) if mark else (None, None)
                yield Remains(
                    folder=folder,
                    request=request,
                    program=program,
                    step=step,
                    samples=samples,
                    total_samples=total,
                )


def _newest_checkpoint(home: Path) -> tuple[int, CommitMark | None]:
    """Return the step and the mark of the newest checkpoint that is complete; -1 and None where
    there is none.
    """
    marks = sorted(
        home.glob(f"gen-*/ckpt-*{COMMITTED}"),
        key=lambda file: checkpoints.checkpoint_step(_checkpoint_path(file)),
    )
    for file in reversed(marks):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            mark = msgspec.json.decode(file.read_bytes(), type=CommitMark)
            if mark.digest == _checkpoint_digest(_checkpoint_path(file)):
                return checkpoints.checkpoint_step(_checkpoint_path(file)), mark
    return -1, None


def _checkpoint_path(mark: Path) -> str:
    return mark.as_posix().removesuffix(COMMITTED)


def _checkpoint_digest(path: str) -> str:
    index = Path(f"{path}{INDEX}")
    parts = [
        file for file in index.parent.glob(f"{index.stem}.*") if checkpoints.is_in_digest(file.name)
    ]
    return checkpoints.checkpoint_digest(
        index.read_bytes(), [(file.name, file.stat().st_size) for file in parts]
    )
