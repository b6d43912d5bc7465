"""`weir submit FILE`: request training, and print the allocator's answer.

1. Read and check the YAML and its program, without running it: errors in
   both are reported at once. The allocator checks the rest: the namespaces, images, folders and
   policies that the cluster allows, and the names in use.
2. Store the program, by its digest.
3. Publish the request. Its stream sequence is the job's uid.
4. Wait for the answer to this request.
5. Warn if no node is large enough. The allocator knows the nodes and gives its first reason soon;
   without a reason after `WORD_S` there is no warning.
6. Print the next steps, or follow the job to its end.

`weir submit PROGRAM --tfjob FILE` makes the request from a TFJob (`tfjob.py`), and prints the
remarks on it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
import uuid
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from nats.errors import Error as NatsError

from services.allocator.job_views import JobView
from services.allocator.placement.trial import NEVER
from services.cli import connection, program_file
from services.cli.command_line import (
    FILE,
    NAMESPACE,
    Arguments,
    argument,
    combine_options,
    command,
    flag,
    help_page,
    nats_option,
    option,
    param_option,
    timeout_option,
)
from services.cli.events import event_printer
from services.cli.program_source import ProgramSource, read_program
from services.cli.tfjob import WISHES, read_manifest, translate_tfjob
from services.cli.tfjob import Asked as TfjobRequest
from services.console import job_file
from services.console.bus_reader import READER_CLOCK_S, follow_views, read_entries
from services.console.dry_run import dry_run, rules_from_environment
from services.console.job_file import Fields, example_path, read_text
from services.console.log_entry import Entry, entry_filters
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from shared.auth.permissions import API
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import DEFAULT_NAMESPACE, FACTS, ORDERS, event_headers, tag_of
from shared.messages import JobAccepted, JobFinished, JobMessage, JobRejected, JobRequested
from shared.text import single_line

EXAMPLES = (
    f"weir submit {example_path('digits.yaml')} --follow",
    f"weir submit {example_path('digits.yaml')} --dry-run",
    "weir submit mine.yaml --param learning_rate=0.01 --param augment=true",
    "weir submit train.py --tfjob tfjob.yaml --epochs 10 --batch 128",
)
ANSWERS: tuple[type[JobAccepted | JobRejected], ...] = (JobAccepted, JobRejected)
ANSWER_S = 30.0
HEADERS_BYTES = 2048  # the server's limit counts them too


# ---------------------------------------------------------------- the request, from files


NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
"""The program in the request if the given one cannot be read, so that the other fields can be
checked.
"""
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
            f"{file} names the namespace {own!r}, and -n {namespace!r}: give only one",
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
    "batch": "examples of one update",
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
        "with --tfjob FILE",
        ABOUT,
        "the fields of a TFJob that Weir uses, and more options",
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
        help="the image to use instead of the TFJob's; '': the cluster's",
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
            f"{', '.join(names)} needs --tfjob; without it, set the field in the job's file",
            WRONG_USE,
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
    for line in _format_list(f"Weir handles these parts of {file} differently:", remarks):
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


# ---------------------------------------------------------------- the command


@command(EXAMPLES, exclusive=("follow", "dry_run", "print"))
@nats_option
@argument(
    "file",
    type=FILE,
    required=False,
    metavar="[FILE]",
    help="the job's YAML file; with --tfjob: the program, a file, folder or zip",
)
@tfjob_options
@option(
    "-n",
    "--namespace",
    type=NAMESPACE,
    metavar="NS",
    help="the job's namespace, if the file names none",
)
@param_option
@flag("-f", "--follow", help="watch the job to its end; 0 only if it succeeded")
@flag("--dry-run", help="only show the decision for it as of now, and the reason")
@flag("--print", help="only print the request as JSON; nothing is sent or stored")
@timeout_option(ANSWER_S, "how long to wait for the answer")
def run(args: Arguments) -> int:
    request = prepare_request(args)
    if args.print:
        return print_request(request)
    return connection.on_bus(args, partial(print_dry_run if args.dry_run else submit_job, request))


def print_request(request: PreparedRequest) -> int:
    """Print the request without an id, so that sending the text twice makes two requests."""
    fields = dict(request.fields)
    fields.pop("request_id", None)
    body = job_file.encode_fields(fields, request.file.name)
    print(msgspec.json.format(body, indent=2).decode())
    return DONE


async def submit_job(request: PreparedRequest, bus: Bus, args: Arguments) -> int:
    namespace = str(request.fields.get("namespace", DEFAULT_NAMESPACE))
    if request.program is None:
        await program_file.require_bucket(bus, namespace)
    else:
        await program_file.store_program(bus, request.program.body, namespace)
    uid = await publish_request(bus, request.fields, request.file.name)
    where = _answer_key(bus, request.fields)
    answer = await connection.first_message(
        bus, ANSWERS, uid, lambda a: a.uid == uid, args.timeout, where
    )
    if answer is None:
        error = f"no answer to request {uid} within {args.timeout:g} s; is the allocator running?"
        raise Trouble(f"{error}\n{STAYS}")
    if isinstance(answer, JobRejected):
        refused = f"the request in {request.file}"
        if answer.job == request.fields.get("job"):
            refused = f"job {answer.job}"
        reasons = [f"  - {single_line(reason)}" for reason in answer.reasons]
        raise Trouble("\n".join([f"{refused} is refused:", *reasons]))
    print(f"job {answer.key().replace('.', '/')} is accepted (uid {uid})", flush=True)
    for line in filter(
        None, [await warn_if_too_large(bus, answer), _next_steps(answer, request, args)]
    ):
        print(line, file=sys.stderr, flush=True)
    return await follow_job(bus, answer) if args.follow else DONE


def _next_steps(accepted: JobAccepted, request: PreparedRequest, args: Arguments) -> str:
    """Return one line: how to watch the job, and how to try its program."""
    has_password = "@" in (args.nats or "")
    bus = f" --nats {args.nats}" if args.nats and not has_password else ""
    namespace = "" if accepted.namespace == DEFAULT_NAMESPACE else f" -n {accepted.namespace}"
    steps = []
    if not args.follow:
        events = f"weir events --job {accepted.job} --follow{namespace}{bus}"
        steps.append(f"watch it: `{events}`, or `weir top{bus}`")
    if request.path is not None:
        doctor = f"weir doctor {shlex.quote(str(request.path))}"
        if request.fields.get("params") and not args.tfjob:
            doctor += f" --job {shlex.quote(str(request.file))}"
        for name, value in args.params:
            doctor += f" --param {shlex.quote(f'{name}={_format_value(value)}')}"
        steps.append(f"the program was read, not tried: `{doctor}`")
    return "; ".join(steps)


def _format_value(value: object) -> str:
    """Return the value of a parameter as `--param` takes it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def print_dry_run(request: PreparedRequest, bus: Bus, args: Arguments) -> int:
    lines = await dry_run(
        bus,
        request.body,
        str(request.file),
        rules_from_environment(connection.current_connection(args).limits),
    )
    await program_file.require_bucket(bus, str(request.fields.get("namespace", DEFAULT_NAMESPACE)))
    for line in lines:
        print(line)
    return DONE


STAYS = "The request stays stored and will be answered; `weir events` shows it."


# ---------------------------------------------------------------- request and answer


async def publish_request(bus: Bus, fields: Fields, name: str) -> int:
    """Publish the request, valid or not; return its stream sequence."""
    body = job_file.encode_fields(fields, name)
    limit = bus.client.max_payload
    if len(body) + HEADERS_BYTES > limit:
        raise Trouble(
            f"{name} makes a request of {len(body):,} bytes; this NATS server takes at most "
            f"{limit:,}: shorten it"
        )
    return await bus.submit(job_file.subject_of(fields), body, _request_headers(fields, bus.name))


def _request_headers(fields: Fields, source: str) -> dict[str, str]:
    tag, key = tag_of(JobRequested), job_file.subject_key(fields)
    return event_headers(tag, key, f"{key}.{tag}.{fields['request_id']}", source)


def _answer_key(bus: Bus, fields: Fields) -> str:
    """Return the key of the answer's subject. The answer to an invalid name has another key, so the
    operator subscribes to all; other credentials may read only their namespace.
    """
    return ">" if bus.client.api == API else f"{fields.get('namespace', 'default')}.*"


# ---------------------------------------------------------------- following the job


async def follow_job(bus: Bus, accepted: JobAccepted) -> int:
    """Show the job's events until it is finished; print the whole traceback of a failed job."""
    show = event_printer(as_json=False)
    async with aclosing(
        read_entries(bus, _job_queries(accepted, time.time()), follow=True)
    ) as entries:
        async for entry in entries:
            if _is_about_job(entry, accepted.uid):
                show(entry)
            if isinstance(entry.message, JobFinished) and entry.message.uid == accepted.uid:
                return _exit_code(entry.message)
    return FAILED


def _job_queries(accepted: JobAccepted, now: float) -> list[StreamQuery]:
    job, namespace = accepted.job, accepted.namespace
    return [
        StreamQuery(ORDERS, entry_filters(ORDERS, job, namespace), after=accepted.uid),
        StreamQuery(FACTS, entry_filters(FACTS, job, namespace), since_s=now - READER_CLOCK_S),
    ]


def _is_about_job(entry: Entry, uid: int) -> bool:
    """Return False for a message about an earlier job of the same name. A message without a uid,
    such as a request to cancel, counts as the job's.
    """
    return not isinstance(entry.message, JobMessage) or entry.message.uid == uid


def _exit_code(finished: JobFinished) -> int:
    if finished.outcome == "failed" and "\n" in finished.cause:
        print(finished.cause, file=sys.stderr)
    return DONE if finished.outcome == "succeeded" else FAILED


WORD_S = 2.0
"""Seconds to wait for the allocator's first reason."""


async def warn_if_too_large(bus: Bus, accepted: JobAccepted) -> str:
    """Return a warning if the job is too large for every node; else, or if unknown, an empty
    text.
    """
    try:
        async with asyncio.timeout(WORD_S):
            return size_warning(await _first_reason(bus, accepted))
    except (NatsError, OSError, TimeoutError):
        return ""


async def _first_reason(bus: Bus, accepted: JobAccepted) -> JobView:
    async with aclosing(follow_views(bus, accepted.namespace, accepted.job)) as changes:
        async for views in changes:
            for view in views.values():
                if view.uid == accepted.uid and (view.why or view.phase != "Pending"):
                    return view
    raise TimeoutError


def size_warning(view: JobView) -> str:
    """Return the warning, one line; empty if the job waits for another reason."""
    if view.phase != "Pending" or not view.why.startswith(NEVER):
        return ""
    return f"weir submit: it was accepted, but {single_line(view.why)}. It waits for a larger node"
