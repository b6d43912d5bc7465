"""`weir decide`: the shipping decision for scripts, what-if, and simulators from outside.

Reads one JSON document a line on standard input: the nodes, the jobs, and observations of them.
Writes one a line on standard output: the whole desired state of every job, with reasons. State is
kept from line to line as in the live service. The answer to an invalid line is `{"line": n,
"errors": [every reason]}`; the next lines are answered all the same, and the exit code is 0. Needs
no NATS.
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
    help=(
        f"the policy of jobs that name none (default: {Rules().policy}):"
        f" {', '.join(sorted(POLICIES))}, or module:function"
    ),
)
@option(
    "--reserve-after",
    type=AT_LEAST_ZERO,
    default=Rules().reserve_after_s,
    metavar="S",
    help=(
        "reserve capacity for jobs that have waited for so many seconds "
        f"(default: {Rules().reserve_after_s:g}; 0: never)"
    ),
)
@help_page(
    "lines",
    "the lines",
    file_formats.DECIDE,
    "the fields of a line, with an example",
)
@help_page("fields", "more fields of a line", file_formats.FIELDS, "all fields of a line")
def run(args: Arguments) -> int:
    rules = Rules(policy=args.policy, reserve_after_s=args.reserve_after)
    session = DocumentSession(rules, time.perf_counter)
    encode = msgspec.json.Encoder().encode
    for line in sys.stdin.buffer:
        if document := line.strip():
            sys.stdout.buffer.write(encode(_answer_line(session, document)) + b"\n")
            sys.stdout.buffer.flush()
    return DONE


def _answer_line(session: DocumentSession, line: bytes) -> Answer | Refusal:
    """Return the answer to a line. A bug in a policy or in Weir does not end the process: it is
    reported in the answer and on standard error.
    """
    try:
        answer = session.answer(line)
        if isinstance(answer, Answer):
            for failure in session.decisions.failures:
                text = f"{failure.traceback}weir decide: {failure.job}: {failure.reason}"
                print(text, file=sys.stderr)
        return answer
    except Exception as fault:
        traceback.print_exc()
        return Refusal(line=session.lines, errors=(f"the decision failed: {fault!r}",))
