"""`weir doctor PROGRAM`: find mistakes in a training program before it costs anything.

1 read its text   2 check its job, if there is one   3 try it in one process like a trainer's, and
read its examples in another   4 compare it with its job's resources. Each finding has a remedy.

The program runs in processes of its own, each in a folder of its own; this one has no TensorFlow.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
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
    param_option,
    timeout_option,
)
from services.cli.program_source import ProgramSource, read_program, split_entry
from services.console import job_file
from services.console.dry_run import rules_from_environment
from services.console.job_file import example_path, read_text
from services.console.text.cells import Terminal
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from services.trainer.doctor.findings import (
    IMAGE_MODULES,
    MAX_NAMES,
    Finding,
    Weight,
    fine_finding,
    format_bytes,
    imported_modules,
    probability_findings,
    program_findings,
    source_findings,
    wrong_finding,
)
from services.trainer.doctor.job_fit import job_findings
from services.trainer.doctor.observations import ExamineRequest, Observations
from services.trainer.program import write_program
from services.trainer.protocol import crash_failure
from shared.messages import DEFAULT_CONSISTENCY, Consistency, JobRequested
from shared.runtime import process
from shared.text import format_count, format_names, single_line

BATCH = 32  # if no job gives another
MOST_PS = 2  # in a trial
LIMIT_S = 75.0
ROWS_EXAMPLE = "plays.py"  # looks up rows of a table as the findings advise
NO_PYTHON = "correct it, or give another: a program is a file of Python, or a folder of them"
LACKING = "services/trainer/README.md explains each function"
PARAMS = "correct `params:` in the job's file, or --param"
YAML = {".yaml", ".yml"}
STYLES: dict[Weight, str] = {"fine": "green", "advice": "yellow", "wrong": "bold red"}
EXAMPLES = (
    "weir doctor mine.py",
    f"weir doctor {example_path('plays.py')} --job {example_path('plays.yaml')}",
)


class Overrides(NamedTuple):
    """Options that take precedence over the job's file."""

    params: Sequence[tuple[str, Any]]
    consistency: Consistency | None


@command(EXAMPLES)
@argument(
    "program",
    type=FILE,
    metavar="PROGRAM",
    help="the training program (a file, folder or zip), or its job's YAML",
)
@option(
    "--job",
    type=FILE,
    metavar="YAML",
    help="the job's file (default: the YAML of the same name beside the program, if there is one)",
)
@param_option
@option(
    "--consistency",
    type=click.Choice(get_args(Consistency)),
    help="how workers make its updates, in place of the job's",
)
@timeout_option(LIMIT_S, "the longest time for one call of its code")
@json_option
def run(args: Arguments) -> int:
    program, job_path = _named_files(args.program, args.job)
    source = read_program(program)
    overrides = Overrides(args.params, args.consistency)
    findings = list(_examine_program(source, job_path, overrides, args.timeout))
    if args.json:
        print(msgspec.json.encode({"program": str(program), "findings": findings}).decode())
    else:
        _print_findings(findings)
    return FAILED if any(finding.weight == "wrong" for finding in findings) else DONE


def _named_files(path: Path, job_path: Path | None) -> tuple[Path, Path | None]:
    """Return the paths of the program and of its job's file, if there is one.

    `path`: the program, or a job's file that names it.
    """
    if path.suffix not in YAML or path.is_dir():
        beside = _job_beside(path)
        if job_path is None and beside.is_file():
            return path, beside
        return path, job_path
    if job_path is not None:
        raise Trouble(
            f"{path} is a job's file, and so is {job_path}: give its program, or one of them",
            WRONG_USE,
        )
    program = _job_fields(path).get("program")
    if not (isinstance(program, str) and program):
        raise Trouble(f"{path} names no program: weir doctor PROGRAM --job {path}", WRONG_USE)
    return path.parent / program, path


def _job_beside(path: Path) -> Path:
    """Return the path that the job's file of a program has, if there is one."""
    place, _ = split_entry(path)
    if not place.is_dir():
        return place.with_suffix(".yaml")
    folder = place.resolve()
    return folder.parent / f"{folder.name}.yaml"


class _ProgramText(NamedTuple):
    """The Python files of a program. `trees`: the syntax tree of each file by its path, the file
    with the functions first; `own`: the modules in these files; `beside`: modules in the program's
    folder that a job does not get; `left_behind`: imported modules of `beside`; `installed`: all
    other imported modules.
    """

    trees: dict[str, ast.Module]
    own: set[str]
    beside: set[str]
    left_behind: list[str]
    installed: list[str]


def _examine_program(
    source: ProgramSource, job_path: Path | None, overrides: Overrides, limit_s: float
) -> Iterator[Finding]:
    fields = _fields_of_job(job_path, overrides)
    params = fields.get("params")
    params = params if isinstance(params, dict) else {}
    # 1. Read its text.
    try:
        program_file.check_source(source, params)
    except Trouble as trouble:
        yield wrong_finding(str(trouble), _remedy_of(trouble))
        return
    text = _parse_program(source)
    imports = f", and imports {', '.join(text.installed)}" if text.installed else ""
    yield fine_finding(f"it has all functions{imports}")
    if source.packed:
        yield fine_finding(_describe_files(source))
    # 2. Check its job.
    job = _checked_request(fields, job_path, source) if job_path else None
    if isinstance(job, InvalidRequest):
        reasons = "\n".join(job.reasons)
        yield wrong_finding(f"{job_path} would be refused", job_file.FIELDS_HINT, reasons)
    request = job if isinstance(job, JobRequested) else None
    image = request.image if request else None
    for file, tree in text.trees.items():
        yield from source_findings(tree, file, text.beside, text.own, image, set(source.files))
    # 3. Try it.
    trial_request = _trial_request(request, params, limit_s, overrides.consistency)
    tried, reread = try_program(source, trial_request, _plain_variables(request))
    yield from program_findings(tried, reread, example_path(ROWS_EXAMPLE), text.left_behind)
    yield from probability_findings(text.trees[source.entry], source.entry, tried)
    # 4. Compare it with the job's resources.
    if request:
        yield from job_findings(tried, request)


def _remedy_of(trouble: Trouble) -> str:
    """Return what to do about a program that cannot be submitted."""
    if str(trouble).startswith("params."):
        return PARAMS
    return NO_PYTHON if isinstance(trouble, program_file.NoPython) else LACKING


def _parse_program(source: ProgramSource) -> _ProgramText:
    trees = {file: ast.parse(source.files[file]) for file in _python_files(source)}
    own = _own_modules(source)
    beside = set() if source.packed else _modules_beside(source.path)
    imported = [name for name in imported_modules(trees.values()) if name not in own]
    return _ProgramText(
        trees,
        own,
        beside,
        left_behind=[name for name in imported if name in beside],
        installed=[name for name in imported if name not in beside],
    )


def _fields_of_job(job_path: Path | None, overrides: Overrides) -> job_file.Fields:
    """Return the fields of the job's file, if there is one, overridden by the options."""
    fields = _job_fields(job_path) if job_path else {}
    fields = job_file.with_params(fields, overrides.params)
    if overrides.consistency:
        fields = {**fields, "consistency": overrides.consistency}
    return fields


def _python_files(source: ProgramSource) -> list[str]:
    """Return the Python files of a program, the one with the functions first."""
    others = [file for file in source.files if file.endswith(".py") and file != source.entry]
    return [source.entry, *sorted(others)]


def _own_modules(source: ProgramSource) -> set[str]:
    """Return the modules in the files of a program that is a folder."""
    if not source.packed:
        return set()
    files = _python_files(source)
    folder = source.entry.rpartition("/")[0]
    below = [file.removeprefix(f"{folder}/") for file in files if file.startswith(f"{folder}/")]
    return {file.partition("/")[0].removesuffix(".py") for file in (*files, *below)}


def _describe_files(source: ProgramSource) -> str:
    total = format_bytes(sum(map(len, source.files.values())))
    what = f"{source.entry} and its folder: {format_count(len(source.files), 'file')}, {total}"
    if source.left_out:
        what += f"; .gitignore leaves out {format_names(source.left_out, MAX_NAMES)}"
    return what


def _trial_request(
    job: JobRequested | None,
    params: dict[str, Any],
    limit_s: float,
    consistency: Consistency | None,
) -> ExamineRequest:
    """Return the request of a trial; `limit_s`: the longest time for one call of its code;
    `consistency`: if there is no job.
    """
    if job is None:
        return ExamineRequest(
            program="",
            params=params,
            batch=BATCH,
            ps=1,
            consistency=consistency or DEFAULT_CONSISTENCY,
            limit_s=limit_s,
        )
    return ExamineRequest(
        program="",
        params=params,
        batch=job.batch.start,
        device_batch_max=job.device_batch_max,
        ps=min(job.ps.max, MOST_PS),
        shuffled=job.shuffle is None or job.shuffle.on,
        consistency=job.consistency or DEFAULT_CONSISTENCY,
        limit_s=limit_s,
    )


def _checked_request(
    fields: job_file.Fields, path: Path, source: ProgramSource
) -> JobRequested | InvalidRequest:
    """Return the job's request, checked as the allocator would by the rules of this environment."""
    unsendable = tuple(job_file.unsendable_params(fields.get("params")))
    if unsendable:
        return InvalidRequest("-", "-", unsendable)
    fields = job_file.complete_fields(fields, source.reference, "-")
    encoded = job_file.encode_fields(fields, path.name)
    return check_request(encoded, rules_from_environment())


def _job_fields(path: Path) -> job_file.Fields:
    return job_file.parse_fields(read_text(path, job_file.EXAMPLE_HINT), path.name)


def _modules_beside(path: Path) -> set[str]:
    """Return the modules that can be imported only from the program's own folder.

    A package needs no `__init__.py`. A folder with the name of an installed package does not count.
    """
    folder = path.resolve().parent
    modules = {file.stem for file in folder.glob("*.py") if file.name != path.name}
    packages = {file.parent.name for file in folder.glob("*/*.py")}
    return (modules | packages) - IMAGE_MODULES


# ---------------------------------------------------------------- output


def _print_findings(findings: list[Finding]) -> None:
    terminal = Terminal(highlight=False)
    counts = dict.fromkeys(STYLES, 0)
    for finding in findings:
        counts[finding.weight] += 1
        first, *details = finding.what.splitlines()
        line = Text(f"{finding.weight:7}", style=STYLES[finding.weight])
        terminal.print(line.append(single_line(first), style="default"), soft_wrap=True)
        details += finding.more.splitlines()
        for detail in details:
            printable = "".join(c if c.isprintable() else " " for c in detail)
            terminal.print(Text(f"        | {printable}"), soft_wrap=True)
        if finding.remedy:
            terminal.print(Text(f"        -> {finding.remedy}"), soft_wrap=True)
    summary = f"{counts['wrong'] or 'nothing'} wrong, {counts['advice']} to consider"
    terminal.print(summary, soft_wrap=True)


# ---------------------------------------------------------------- trials

LONGEST_S = 600.0  # from the last observations to the end of the process
OUTPUT_CHARACTERS = 2000  # of the end of its output
OBSERVATIONS = msgspec.json.Decoder(Observations)


def _plain_variables(request: JobRequested | None) -> dict[str, str]:
    """Return the variables of a job that have a value in its file. Those of a Secret or ConfigMap
    are as in this environment.
    """
    if request is None:
        return {}
    return {each.name: each.value for each in request.env if each.value is not None}


def try_program(
    source: ProgramSource, request: ExamineRequest, variables: Mapping[str, str] | None = None
) -> tuple[Observations, Observations]:
    """Run two processes, with different seeds of `hash`, and return their observations.

    The first one tries everything; the second one only reads the same examples.
    """
    print("trying it in two processes; TensorFlow takes some seconds to start", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="weir-doctor-") as folder:
        entry = source.entry if source.packed else ""
        path = write_program(source.body, source.name, source.digest, entry, Path(folder))
        full = msgspec.structs.replace(request, program=str(path), entry=entry)
        reading = msgspec.structs.replace(full, ps=0)
        first = _Trial(Path(folder), full, 0, variables or {})
        second = _Trial(Path(folder), reading, 1, variables or {})
        return first.wait_for_outcome(), second.wait_for_outcome()


class _Trial:
    """One process, started in a folder of its own like a pod."""

    def __init__(
        self, folder: Path, request: ExamineRequest, seed: int, variables: Mapping[str, str]
    ) -> None:
        self._request = request
        self._folder = folder / str(seed)
        self._folder.mkdir()
        self._reads, writes = os.pipe()
        self._log = (self._folder / "log").open("wb")
        arguments = [str(writes), msgspec.json.encode(request).decode()]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.trainer.doctor.examine", *arguments],
            cwd=self._folder,
            env={**_trial_environment(seed), **variables},
            pass_fds=[writes],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=process.die_with_parent,
        )
        os.close(writes)

    def wait_for_outcome(self) -> Observations:
        """Wait for the end and return the last observations, with the cause if it ended early."""
        with os.fdopen(self._reads, "rb") as pipe:
            lines = pipe.read().splitlines()
        code = self._process.wait(LONGEST_S)
        self._log.close()
        crash_lines = []
        observations = Observations()
        for line in lines:
            try:
                observations = OBSERVATIONS.decode(line)
            except msgspec.DecodeError:
                crash_lines.append(line.decode(errors="replace"))  # written by faulthandler
        if observations.failed or observations.done:
            return observations
        cause = self._death_cause(code, "\n".join(crash_lines))
        return msgspec.structs.replace(observations, failed=cause)

    def _death_cause(self, code: int, crash_text: str) -> str:
        if crash_text:
            return crash_failure(crash_text, self._request.program).cause
        end = signal.Signals(-code).name if code < 0 else f"code {code}"
        output = (self._folder / "log").read_text(errors="replace")[-OUTPUT_CHARACTERS:]
        return f"its process ended with {end} before it was done\n{output}"


def _trial_environment(seed: int) -> dict[str, str]:
    """Return the environment of a pod, as far as a program can see it, with a seed of `hash` and
    without a folder to import from.
    """
    own_path = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [own_path, os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": str(seed + 1),
        "GRPC_FAIL_FAST": "use_caller",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
