"""`weir decide`: the shipping decision for scripts, what-if, and simulators from outside.

A JSON document a line on standard input (the nodes, the jobs, what is known of them), one a line on
standard output: the whole wanted state of every job, and why. State is kept from line to line as in
the live service. A line that cannot be used is answered with `{"line": n, "errors": [every
reason]}`, and the next one is read: the exit code is 0 however many there were. Nothing here needs
NATS.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import msgspec

from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.cli import file_formats
from services.cli.parameters import policy
from services.cli.parsing import apart, at_least_zero
from services.console.trouble import DONE
from services.whatif.decide_json.answer import Answer, DocumentSession, Refusal

EXAMPLES = ("weir decide < worlds > decisions", "weir decide --policy dlrover < worlds")


def arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(sorted(POLICIES))
    said = f"for jobs that name none (default: {Rules().policy}); there are {names}, or module:function"
    parser.add_argument("--policy", type=policy, default=Rules().policy, metavar="NAME", help=said)
    said = f"jobs that have waited so long have capacity reserved (default: {Rules().reserve_after_s:g}; 0: never)"
    parser.add_argument(
        "--reserve-after",
        type=at_least_zero,
        default=Rules().reserve_after_s,
        metavar="S",
        help=said,
    )
    apart(
        parser,
        "lines",
        "what is in the lines",
        file_formats.DECIDE,
        "what is in a line, with an example",
    )
    apart(
        parser, "fields", "what else a line may say", file_formats.FIELDS, "all that a line may say"
    )


def run(args: argparse.Namespace) -> int:
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
