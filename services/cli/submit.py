"""`weir submit FILE`: request training, and print the allocator's answer.

1. Read and check the YAML and its program, without running it (`build_request.py`).
2. Store the program, by its digest.
3. Publish the request. Its stream sequence is the job's uid.
4. Wait for the answer to this request.
5. Warn if no node is large enough. The allocator knows the nodes and gives its first reason soon;
   without a reason after `WORD_S` there is no warning.
6. Print the next steps, or follow the job to its end.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from contextlib import aclosing
from functools import partial

import msgspec
from nats.errors import Error as NatsError

from services.allocator.job_views import JobView
from services.allocator.placement.trial import NEVER
from services.cli import build_request, connection, program_file
from services.cli.build_request import PreparedRequest, prepare_request
from services.cli.command_line import (
    FILE,
    NAMESPACE,
    Arguments,
    argument,
    command,
    flag,
    nats_option,
    option,
    param_option,
    timeout_option,
)
from services.cli.events import event_printer
from services.console import job_file
from services.console.bus_reader import READER_CLOCK_S, follow_views, read_entries
from services.console.dry_run import dry_run, rules_from_environment
from services.console.job_file import Fields, example_path
from services.console.log_entry import Entry, entry_filters
from services.console.trouble import DONE, FAILED, Trouble
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


@command(EXAMPLES, exclusive=("follow", "dry_run", "print"))
@nats_option
@argument(
    "file",
    type=FILE,
    required=False,
    metavar="[FILE]",
    help="the job's YAML file; with --tfjob: the program, a file, folder or zip",
)
@build_request.tfjob_options
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


# ---------------------------------------------------------------- asking


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


# ---------------------------------------------------------------- following


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
