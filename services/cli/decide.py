"""`weir decide`: the shipping decision for scripts, what-if, and simulators from outside.

A JSON document a line on standard input (the nodes, the jobs, what is known of them), one a line on
standard output: the whole wanted state of every job, and why. State is kept from line to line as in
the live service. A line that cannot be used is answered with `{"line": n, "errors": [every
reason]}`, and the next one is read: the exit code is 0 however many there were. Nothing here needs
NATS.
"""

from __future__ import annotations

import sys
import time
import traceback

import msgspec

from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.cli import file_formats, parameters
from services.cli.command_line import AT_LEAST_ZERO, Arguments, Value, command, help_page, option
from services.console.trouble import DONE
from services.whatif.decide_json.answer import Answer, DocumentSession, Refusal

EXAMPLES = ("weir decide < worlds > decisions", "weir decide --policy dlrover < worlds")


@command(EXAMPLES)
@option(
    "--policy",
    type=Value(parameters.parse_policy, offers=sorted(POLICIES)),
    default=Rules().policy,
    metavar="NAME",
    help=f"for jobs that name none (default: {Rules().policy}): {', '.join(sorted(POLICIES))}, "
    "or module:function",
)
@option(
    "--reserve-after",
    type=AT_LEAST_ZERO,
    default=Rules().reserve_after_s,
    metavar="S",
    help="reserve capacity for jobs that have waited so long "
    f"(default: {Rules().reserve_after_s:g}; 0: never)",
)
@help_page(
    "lines",
    "what is in the lines",
    file_formats.DECIDE,
    "what is in a line, with an example",
)
@help_page("fields", "what else a line may say", file_formats.FIELDS, "all that a line may say")
def run(args: Arguments) -> int:
    desk = DocumentSession(
        Rules(policy=args.policy, reserve_after_s=args.reserve_after), time.perf_counter
    )
    encode = msgspec.json.Encoder().encode
    for line in sys.stdin.buffer:
        if document := line.strip():
            sys.stdout.buffer.write(encode(_answer_line(desk, document)) + b"\n")
            sys.stdout.buffer.flush()
    return DONE


def _answer_line(desk: DocumentSession, line: bytes) -> Answer | Refusal:
    """A fault of a policy or of ours does not end the process either: whoever drives it is told,
    and goes on.
    """
    try:
        answer = desk.answer(line)
        for failure in desk.decisions.failures if isinstance(answer, Answer) else ():
            print(
                f"{failure.traceback}weir decide: {failure.job}: {failure.reason}", file=sys.stderr
            )
        return answer
    except Exception as fault:
        traceback.print_exc()
        return Refusal(line=desk.lines, errors=(f"the decision failed: {fault!r}",))
