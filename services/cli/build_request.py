"""What `weir submit` asks for, from the files of this machine: all is read and checked before the
bus is looked for.

What is wrong with a request in itself, and with its program, is told here, every reason at once.
What only the cluster knows (which namespaces, images, folders and policies of its own it allows,
which names are in use) it answers.

`weir submit PROGRAM --tfjob FILE`: what is said on the command line beside a TFJob, and what its
reader is told.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import msgspec

from services.cli import program_file
from services.cli.command_line import FILE, Arguments, combine_options, flag, help_page, option
from services.cli.tfjob import WISHES, manifest, translate_tfjob
from services.cli.tfjob import Asked as TfjobRequest
from services.console import job_file
from services.console.job_file import Fields, read_text
from services.console.trouble import WRONG_USE, Trouble
from shared.text import single_line

NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
"""Stands for one that cannot be read, while the other fields are looked at."""


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`file`: what is asked by; `body`: the request with these `fields`, as JSON; `path`: of the
    program that goes with it, None where the request names one by its digest.
    """

    file: Path
    fields: Fields
    body: bytes
    path: Path | None
    program: bytes | None


def prepare_request(args: Arguments) -> PreparedRequest:
    """Raises `Trouble` with everything that can be told against it here."""
    file = _source_file(args)
    fields, path = request_from_tfjob(args) if args.tfjob else _read_job_file(file, args)
    fields = _in_namespace(fields, args.namespace, file)
    program, found, trouble = _read_program(path)
    fields = job_file.complete_fields(fields, found, uuid.uuid4().hex)
    body = job_file.encode_fields(fields, file.name)
    if wrong := job_file.reasons_against(fields):
        told = [*wrong, *(f"program: {line}" for line in str(trouble or "").splitlines())]
        raise Trouble(
            "\n".join(
                [f"{file} cannot be asked for:", *(f"  - {single_line(r)}" for r in told), BEGIN]
            ),
            WRONG_USE,
        )
    if trouble:
        raise trouble
    return PreparedRequest(file=file, fields=fields, body=body, path=path, program=program)


BEGIN = f"Nothing was sent; {job_file.FIELDS_HINT}."


def _source_file(args: Arguments) -> Path:
    """The file that is asked by."""
    file: Path | None = args.tfjob or args.file
    if file is None:
        raise Trouble("which job? Give its FILE, or PROGRAM and --tfjob FILE", WRONG_USE)
    return file


def _read_job_file(file: Path, args: Arguments) -> tuple[Fields, Path | None]:
    """Of a job's own file; its program lies beside it."""
    check_unused_options(args)
    fields = job_file.parse_fields(read_text(file, job_file.EXAMPLE_HINT), file.name)
    program = fields.get("program")
    return fields, file.parent / program if isinstance(program, str) and program else None


def _in_namespace(fields: Fields, namespace: str | None, file: Path) -> Fields:
    """Return the fields with the namespace that was given; raise `Trouble` if the file names
    another one.
    """
    if namespace is None:
        return fields
    named = fields.get("namespace", namespace)
    if named != namespace:
        raise Trouble(
            f"{file} names the namespace {named!r}, and -n {namespace!r}: give one of them",
            WRONG_USE,
        )
    return {**fields, "namespace": namespace}


def _read_program(path: Path | None) -> tuple[bytes | None, Fields | None, Trouble | None]:
    """Its text, how the request names it, and what is wrong with it."""
    if path is None:
        return None, None, None
    try:
        body = program_file.read(path)
        program_file.check(body, path)
    except Trouble as trouble:
        return None, NO_PROGRAM, trouble
    return body, {"name": path.name, "digest": program_file.digest(body)}, None


ABOUT = """\
Taken are a TFJob's name, namespace, replicas (the start; 1 is the least),
resources, image, claims and grace. Its command is not run: the program has
model(), dataset() and so on. What no TFJob says is given here, or annotated
in it (weir.dev/epochs: "10"). What Weir has nothing like is named, and
nothing is asked for until that is gone or left out."""
NEEDS_PROGRAM = """program: a TFJob's command is not run. Weir trains a Python file with model(), optimizer(),
    loss(), examples() and dataset() (services/trainer/README.md): weir submit PROGRAM --tfjob {file}"""
WAY_OUT = "Do what each line says, or leave all of it out with --leave-out."
NUMBERS = {
    "epochs": "how often every example is trained on",
    "batch": "examples of one update, by one worker",
    "max-ps": "how far ps may grow (default: PS' replicas)",
    "max-workers": "how far workers may grow (default: Worker's replicas)",
    "priority": "the larger, the earlier (default: 0)",
}


tfjob_options = combine_options(
    option(
        "--tfjob",
        type=FILE,
        metavar="FILE",
        help="ask for what a Kubeflow TFJob asks for, with the program FILE",
    ),
    help_page("tfjob", "beside --tfjob FILE", ABOUT, "what of it is taken, and its own options"),
    *(
        option(f"--{name}", type=int, metavar="N", help=text, page="tfjob")
        for name, text in NUMBERS.items()
    ),
    option(
        "--policy",
        metavar="NAME",
        help="how the job grows (default: the cluster's)",
        page="tfjob",
    ),
    option(
        "--image",
        metavar="IMAGE",
        help="instead of the TFJob's; '': the cluster's",
        page="tfjob",
    ),
    flag("--leave-out", help="go on without what Weir has nothing like", page="tfjob"),
)


def check_unused_options(args: Arguments) -> None:
    """Raises `Trouble` for what would be passed over in silence without a TFJob."""
    given = [f"--{name}" for name, value in _option_values(args).items() if value is not None]
    if given or args.leave_out:
        told = ", ".join([*given, *(["--leave-out"] if args.leave_out else [])])
        raise Trouble(f"{told} goes with --tfjob; a job's own file says all of it", WRONG_USE)


def request_from_tfjob(args: Arguments) -> tuple[Fields, Path]:
    """The request's fields, and where its program is; raises `Trouble` with everything that is in
    the way.
    """
    file: Path = args.tfjob
    raw, beside = manifest(read_text(file, "give the file of a TFJob"), file.name)
    found = translate_tfjob(raw, _option_values(args), beside)
    program = args.file or (file.parent / found.program if found.program else None)
    _print_moot_remarks(file, found)
    wrong = [
        *([] if program else [NEEDS_PROGRAM.format(file=file)]),
        *found.describe_remarks("wrong"),
    ]
    lost = [] if args.leave_out else found.describe_remarks("lost")
    if wrong or lost or program is None:
        raise Trouble(
            "\n".join(
                [*_format_list(f"{file} cannot be asked for:", wrong), *_lost_fields(file, lost)]
            ),
            WRONG_USE,
        )
    return found.fields, program


def _option_values(args: Arguments) -> Fields:
    return {name: getattr(args, name.replace("-", "_")) for name in WISHES}


def _print_moot_remarks(file: Path, found: TfjobRequest) -> None:
    """What is done in another way than the file says, so that nobody is surprised."""
    for line in _format_list(
        f"of {file}, Weir does in its own way:", found.describe_remarks("moot")
    ):
        print(line, file=sys.stderr)


def _lost_fields(file: Path, lost: list[str]) -> list[str]:
    return (
        [*_format_list(f"{file} has what a job of Weir's cannot have:", lost), WAY_OUT]
        if lost
        else []
    )


def _format_list(head: str, lines: list[str]) -> list[str]:
    return (
        [
            head,
            *(
                f"  - {line if line.startswith('program: ') else single_line(line)}"
                for line in lines
            ),
        ]
        if lines
        else []
    )
