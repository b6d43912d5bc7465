"""`weir doctor PROGRAM`: would a job of it train what it seems to, and fit? Asked before it costs
anything.

1 read its text   2 check its job, where there is one   3 try it in a process as a trainer's is, and read its examples
in another   4 say what was found, and what to do. The program runs in processes of its own; this one has no TensorFlow.

Two processes that try a program as a trainer's would, each begun in a folder of its own.
Edge.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.text import Text

from services.allocator.admission.validation import InvalidRequest, check_request
from services.cli import program_file
from services.cli.command_line import (
    FILE,
    Arguments,
    argument,
    command,
    json_option,
    option,
    timeout_option,
)
from services.cli.terminal import Terminal
from services.console import job_file as job_file_module
from services.console.dry_run import rules_from_environment
from services.console.job_file import example_path, read_text
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from services.trainer.doctor.findings import (
    IMAGE_MODULES,
    Finding,
    Weight,
    fine_finding,
    imported_modules,
    probability_findings,
    program_findings,
    source_findings,
    wrong_finding,
)
from services.trainer.doctor.job_fit import job_findings
from services.trainer.doctor.observations import ExamineRequest, Observations
from services.trainer.protocol import crash_failure
from shared.messages import JobRequested
from shared.runtime import process
from shared.text import single_line

BATCH = 32  # where no job says another
MOST_PS = 2  # to try an update on
LIMIT_S = 75.0
ROWS_EXAMPLE = "plays.py"  # it looks up rows of a table as the findings advise
NO_PYTHON = "mend it, or give another: a program is one file of Python"
LACKING = "Weir's README.md, Write a training program, says what each function gives"
YAML = {".yaml", ".yml"}
STYLES: dict[Weight, str] = {"fine": "green", "advice": "yellow", "wrong": "bold red"}
EXAMPLES = (
    "weir doctor mine.py",
    f"weir doctor {example_path('plays.py')} --job {example_path('plays.yaml')}",
)


@command(EXAMPLES)
@argument(
    "program",
    type=FILE,
    metavar="PROGRAM",
    help="the training program, or its job's YAML",
)
@option(
    "--job",
    type=FILE,
    metavar="YAML",
    help="the job's file (default: the YAML of the same name beside the program, if there is one)",
)
@timeout_option(LIMIT_S, "how long one call of its code may take")
@json_option
def run(args: Arguments) -> int:
    program, job_file = _named_files(args.program, args.job)
    body = program_file.read_program(program)
    findings = list(_examine_program(program, body, job_file, args.timeout))
    ill = sum(f.weight == "wrong" for f in findings)
    if args.json:
        print(msgspec.json.encode({"program": str(program), "findings": findings}).decode())
    else:
        _print_findings(findings)
    return FAILED if ill else DONE


def _named_files(given: Path, job_file: Path | None) -> tuple[Path, Path | None]:
    """The program, and its job's file where there is one; a job's file in place of a program names
    it.
    """
    if given.suffix not in YAML:
        beside = given.with_suffix(".yaml")
        return given, job_file or (beside if beside.is_file() else None)
    if job_file is not None:
        raise Trouble(
            f"{given} is a job's file, and so is {job_file}: give its program, or one of them",
            WRONG_USE,
        )
    program = _job_fields(given).get("program")
    if not (isinstance(program, str) and program):
        raise Trouble(f"{given} names no program: weir doctor PROGRAM --job {given}", WRONG_USE)
    return given.parent / program, given


def _examine_program(
    path: Path, body: bytes, job_file: Path | None, limit_s: float
) -> Iterator[Finding]:
    # 1. What its text says.
    try:
        program_file.check_program(body, path)
    except Trouble as trouble:
        yield wrong_finding(
            str(trouble), NO_PYTHON if isinstance(trouble, program_file.NoPython) else LACKING
        )
        return
    tree, beside = ast.parse(body), _modules_beside(path)
    left, comes = (
        [name for name in imported_modules(tree) if (name in beside) is there]
        for there in (True, False)
    )
    yield fine_finding(
        "it has all functions" + (f", and imports {', '.join(comes)}" if comes else "")
    )
    # 2. What its job says.
    job = _checked_request(job_file, path, body) if job_file else None
    if isinstance(job, InvalidRequest):
        yield wrong_finding(
            f"{job_file} would be refused", job_file_module.FIELDS_HINT, "\n".join(job.reasons)
        )
    known = job if isinstance(job, JobRequested) else None
    yield from source_findings(tree, path.name, beside, known.image if known else None)
    # 3. What it does.
    batch, ps = (known.batch.start, min(known.ps.max, MOST_PS)) if known else (BATCH, 1)
    most = known.device_batch_max if known else None
    asked = ExamineRequest(program="", batch=batch, device_batch_max=most, ps=ps, limit_s=limit_s)
    here, there = try_program(path.name, body, asked)
    yield from program_findings(here, there, example_path(ROWS_EXAMPLE), left)
    yield from probability_findings(tree, path.name, here)
    # 4. How it fits.
    if known:
        yield from job_findings(here, known, example_path(ROWS_EXAMPLE))


def _checked_request(file: Path, program: Path, body: bytes) -> JobRequested | InvalidRequest:
    """The job's request, as the allocator would check it by the rules that this environment has."""
    named = {"name": program.name, "digest": program_file.digest(body)}
    return check_request(
        job_file_module.encode_fields(
            job_file_module.complete_fields(_job_fields(file), named, "-"), file.name
        ),
        rules_from_environment(),
    )


def _job_fields(file: Path) -> job_file_module.Fields:
    return job_file_module.parse_fields(read_text(file, job_file_module.EXAMPLE_HINT), file.name)


def _modules_beside(path: Path) -> set[str]:
    """What could be imported from the program's own folder, and from nowhere else; a package needs
    no `__init__.py`, but one that has the name of an installed one is not meant.
    """
    files = {each.stem for each in path.resolve().parent.glob("*.py") if each.name != path.name}
    return (
        files | {each.parent.name for each in path.resolve().parent.glob("*/*.py")}
    ) - IMAGE_MODULES


# ---------------------------------------------------------------- words


def _print_findings(findings: list[Finding]) -> None:
    terminal = Terminal(highlight=False)
    for each in findings:
        line = Text(f"{each.weight:7}", style=STYLES[each.weight])
        first, *rest = each.what.splitlines()
        terminal.print(line.append(single_line(first), style="default"), soft_wrap=True)
        for more in (*rest, *each.more.splitlines()):
            terminal.print(
                Text(f"        | {''.join(c if c.isprintable() else ' ' for c in more)}"),
                soft_wrap=True,
            )
        if each.remedy:
            terminal.print(Text(f"        -> {each.remedy}"), soft_wrap=True)
    counts = {weight: sum(f.weight == weight for f in findings) for weight in STYLES}
    terminal.print(
        f"{counts['wrong'] or 'nothing'} wrong, {counts['advice']} to consider", soft_wrap=True
    )


LONGEST_S = 600.0  # from the last that it tells to its end
LAST = 2000  # characters of what it printed
SEEN = msgspec.json.Decoder(Observations)


def try_program(name: str, body: bytes, asked: ExamineRequest) -> tuple[Observations, Observations]:
    """What two processes saw: one that tries all, and one that reads the same examples; another
    `hash` has each.
    """
    print("tries it in two processes; TensorFlow takes some seconds to begin", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="weir-doctor-") as folder:
        path = Path(folder) / "program" / name
        path.parent.mkdir()
        path.write_bytes(body)
        every = msgspec.structs.replace(asked, program=str(path))
        trials = [
            _Trial(Path(folder), each, seed)
            for seed, each in enumerate([every, _only_reads(every)])
        ]
        here, there = (trial.wait_for_outcome() for trial in trials)
        return here, there


def _only_reads(asked: ExamineRequest) -> ExamineRequest:
    return msgspec.structs.replace(asked, ps=0)


class _Trial:
    """One process, begun in a folder of its own, as a pod is."""

    def __init__(self, folder: Path, asked: ExamineRequest, seed: int) -> None:
        self.asked, self._folder = asked, folder / str(seed)
        self._folder.mkdir()
        self._reads, writes = os.pipe()
        self._log = (self._folder / "log").open("wb")
        words = [
            "-P",
            "-m",
            "services.trainer.doctor.examine",
            str(writes),
            msgspec.json.encode(asked).decode(),
        ]
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self._folder,
            env=_trial_environment(seed),
            pass_fds=[writes],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=process.die_with_parent,
        )
        os.close(writes)

    def wait_for_outcome(self) -> Observations:
        """The last that it told, once it has ended; and why it told no more."""
        with os.fdopen(self._reads, "rb") as told:
            lines = told.read().splitlines()
        code = self._process.wait(LONGEST_S)
        self._log.close()
        words, seen = list[str](), Observations()
        for line in lines:
            try:
                seen = SEEN.decode(line)
            except msgspec.DecodeError:
                words.append(line.decode(errors="replace"))  # of faulthandler
        if seen.failed or seen.done:
            return seen
        return msgspec.structs.replace(seen, failed=self._death_cause(code, "\n".join(words)))

    def _death_cause(self, code: int, words: str) -> str:
        if words:
            return crash_failure(words, self.asked.program).cause
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        said = (self._folder / "log").read_text(errors="replace")[-LAST:]
        return f"its process ended with {how}, and says no more\n{said}"


def _trial_environment(seed: int) -> dict[str, str]:
    """As a pod's, as far as a program could tell: another seed for `hash` in each, and no folder to
    import from.
    """
    ours = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": path, "PYTHONHASHSEED": str(seed + 1)}
    return {**os.environ, **more, "GRPC_FAIL_FAST": "use_caller", "TF_CPP_MIN_LOG_LEVEL": "3"}
