"""The request of `weir submit`, read from files and checked before the bus is used.

Errors in the request and in its program are reported here, all at once. The allocator checks the
rest: the namespaces, images, folders and policies that the cluster allows, and the names in use.

This module has the options of `weir submit PROGRAM --tfjob FILE`, too, and prints the remarks on
the TFJob.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec

from services.cli import program_file
from services.cli.command_line import FILE, Arguments, combine_options, flag, help_page, option
from services.cli.program_source import ProgramSource, read_program
from services.cli.tfjob import WISHES, read_manifest, translate_tfjob
from services.cli.tfjob import Asked as TfjobRequest
from services.console import job_file
from services.console.job_file import Fields, read_text
from services.console.trouble import WRONG_USE, Trouble
from shared.text import single_line

NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
"""In place of a program that cannot be read, so that the other fields can be checked."""
BEGIN = f"Nothing was sent; {job_file.FIELDS_HINT}."
INVALID = "{file} is not a valid job:"


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is ready to be sent.

    `file`: the job's file; `body`: the request with these `fields`, as JSON; `path`: the program's
    as it was given, and `program`; None if the request names the program by its digest.
    """

    file: Path
    fields: Fields
    body: bytes
    path: Path | None
    program: ProgramSource | None


def prepare_request(args: Arguments) -> PreparedRequest:
    """Read and check the files of a request. Raise `Trouble` with every error that can be found on
    this machine.
    """
    file = _source_file(args)
    fields, path = request_from_tfjob(args) if args.tfjob else _read_job_file(file, args)
    fields = _in_namespace(fields, args.namespace, file)
    fields = job_file.with_params(fields, args.params)
    program, trouble = _read_program(path, fields.get("params"))
    reference: Fields | None = program.reference if program else None
    if trouble:
        reference = NO_PROGRAM
    fields = job_file.complete_fields(fields, reference, uuid.uuid4().hex)
    body = job_file.encode_fields(fields, file.name)
    reasons = list(job_file.reasons_against(fields))
    if reasons:
        if trouble:
            reasons += [f"program: {line}" for line in str(trouble).splitlines()]
        items = [f"  - {single_line(reason)}" for reason in reasons]
        raise Trouble("\n".join([INVALID.format(file=file), *items, BEGIN]), WRONG_USE)
    if trouble:
        raise trouble
    return PreparedRequest(file=file, fields=fields, body=body, path=path, program=program)


def _source_file(args: Arguments) -> Path:
    """Return the job's file: a TFJob's, or one of Weir."""
    file: Path | None = args.tfjob or args.file
    if file is None:
        raise Trouble("no job is given: give its FILE, or PROGRAM and --tfjob FILE", WRONG_USE)
    return file


def _read_job_file(file: Path, args: Arguments) -> tuple[Fields, Path | None]:
    """Return the fields in a job's file, and the path of the program beside it."""
    check_unused_options(args)
    fields = job_file.parse_fields(read_text(file, job_file.EXAMPLE_HINT), file.name)
    program = fields.get("program")
    if isinstance(program, str) and program:
        return fields, file.parent / program
    return fields, None


def _in_namespace(fields: Fields, namespace: str | None, file: Path) -> Fields:
    """Return the fields with the namespace of the command line. Raise `Trouble` if the file names
    another one.
    """
    if namespace is None:
        return fields
    own = fields.get("namespace", namespace)
    if own != namespace:
        raise Trouble(
            f"{file} names the namespace {own!r}, and -n {namespace!r}: give one of them",
            WRONG_USE,
        )
    return {**fields, "namespace": namespace}


def _read_program(path: Path | None, params: Any) -> tuple[ProgramSource | None, Trouble | None]:
    """Return the program, if the request has one, and the error in it or its parameters, if any."""
    if path is None:
        return None, None
    try:
        program = read_program(path)
        program_file.check_source(program, params if isinstance(params, dict) else {})
    except Trouble as trouble:
        return None, trouble
    return program, None


ABOUT = """\
Weir uses a TFJob's name, namespace, replicas (the start; the least is 1),
resources, image, claims and grace. Its command is not run: the program has
model(), dataset() and so on. Give fields that no TFJob has as options, or
as annotations in it (weir.dev/epochs: "10"). Fields that Weir does not
support are listed; nothing is sent until they are removed or left out."""
NEEDS_PROGRAM = """program: a TFJob's command is not run. Weir trains a Python file with model(), optimizer(),
    loss(), examples() and dataset() (services/trainer/README.md): weir submit PROGRAM --tfjob {file}"""
WAY_OUT = "Follow the advice of each line, or leave all of them out with --leave-out."
NUMBERS = {
    "epochs": "the number of passes over all examples",
    "batch": "examples of one update, by one worker",
    "max-ps": "how far ps may grow (default: PS' replicas)",
    "max-workers": "how far workers may grow (default: Worker's replicas)",
    "priority": "jobs with a larger number come first (default: 0)",
}


tfjob_options = combine_options(
    option(
        "--tfjob",
        type=FILE,
        metavar="FILE",
        help="submit the job of a Kubeflow TFJob, with the program FILE",
    ),
    help_page(
        "tfjob",
        "beside --tfjob FILE",
        ABOUT,
        "the fields of a TFJob that count, and its own options",
    ),
    *(
        option(f"--{name}", type=int, metavar="N", help=text, page="tfjob")
        for name, text in NUMBERS.items()
    ),
    option(
        "--policy",
        metavar="NAME",
        help="the policy that sizes the job (default: the cluster's)",
        page="tfjob",
    ),
    option(
        "--image",
        metavar="IMAGE",
        help="instead of the TFJob's; '': the cluster's",
        page="tfjob",
    ),
    flag("--leave-out", help="leave out the fields that Weir does not support", page="tfjob"),
)


def check_unused_options(args: Arguments) -> None:
    """Raise `Trouble` for options that have no effect without a TFJob."""
    names = [f"--{name}" for name, value in _option_values(args).items() if value is not None]
    if args.leave_out:
        names.append("--leave-out")
    if names:
        raise Trouble(
            f"{', '.join(names)} goes with --tfjob; a job's own file has all of it", WRONG_USE
        )


def request_from_tfjob(args: Arguments) -> tuple[Fields, Path]:
    """Return the fields of the request and the path of its program. Raise `Trouble` with every
    obstacle.
    """
    file: Path = args.tfjob
    raw, beside = read_manifest(read_text(file, "give the file of a TFJob"), file.name)
    request = translate_tfjob(raw, _option_values(args), beside)
    _print_moot_remarks(file, request)
    program: Path | None = args.file
    if program is None and request.program:
        program = file.parent / request.program
    wrong = request.describe_remarks("wrong")
    if program is None:
        wrong = [NEEDS_PROGRAM.format(file=file), *wrong]
    lines = _format_list(INVALID.format(file=file), wrong)
    lost = [] if args.leave_out else request.describe_remarks("lost")
    if lost:
        lines += [*_format_list(f"{file} has fields that Weir does not support:", lost), WAY_OUT]
    if lines or program is None:
        raise Trouble("\n".join(lines), WRONG_USE)
    return request.fields, program


def _option_values(args: Arguments) -> Fields:
    return {name: getattr(args, name.replace("-", "_")) for name in WISHES}


def _print_moot_remarks(file: Path, request: TfjobRequest) -> None:
    """Print the fields of a TFJob that Weir handles in a way of its own."""
    remarks = request.describe_remarks("moot")
    for line in _format_list(f"of {file}, Weir does in its own way:", remarks):
        print(line, file=sys.stderr)


def _format_list(head: str, lines: list[str]) -> list[str]:
    """Return a heading and an item for each line; nothing if there is none."""
    if not lines:
        return []
    formatted = [head]
    for line in lines:
        text = line if line.startswith("program: ") else single_line(line)
        formatted.append(f"  - {text}")
    return formatted
