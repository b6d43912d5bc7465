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
from services.cli.command_line import (
    AT_LEAST_ZERO,
    Arguments,
    Value,
    command,
    help_page,
    option,
    parse_policy,
)
from services.console.trouble import DONE
from services.whatif.decide_json.answer import Answer, DocumentSession, Refusal

EXAMPLES = ("weir decide < clusters > decisions", "weir decide --policy dlrover < clusters")


LINE = """\
{"now": 60, "nodes": [{"name": "n1", "cpu": 4, "memory_gib": 16, "gpu": 0}],
 "jobs": [{"job": "a", "submitted_s": 0, "pause_s": 1.2,
  "request": {"ps": 1, "workers": {"start": 1, "min": 1, "max": 3},
   "batch": 64, "resources": {"worker": {"cpu": 1, "memory_gib": 2}}},
  "current": {"chief": "n1", "ps": ["n1"], "workers": ["n1"], "batch": 64,
   "since_s": 0},
  "observed": [{"ps": 1, "workers": 1, "samples_per_second": 90}],
  "progress": {"samples": 5e3, "total_samples": 5e4, "loss": [[5e3, 1.9]]}}]}
"""
LINE_FORMAT = f"""\
In, on one line. Required: now, each name, each job and its request; cpu is
cores, *_s are seconds. current null: no task runs; absent: unchanged since
the last line or answer. since_s absent: since this line, or since the
answer that gave it. resources: a ps or worker left out has the usual ones;
a chief left out needs none.
{LINE}Out, on one line; no workers: it waits. gain: seconds saved, for cost_s:
{{"decisions": [{{"job": "a", "chief": "n1", "ps": ["n1"], "workers": ["n1"],
  "batch": 64, "reason": "...", "gain": 9, "cost_s": 1}}], "decision_ms": 2}}
A line that cannot be used: {{"line": 3, "errors": ["..."]}}; later lines
are still answered, and the exit code is 0.
"""
FIELDS = """\
Unknown values may be left out, or be null.
nodes      free: the free cpu, memory_gib and gpu; absent: what these jobs
           leave. kind: a label. labels, taints: as in Kubernetes, for
           node_selector, affinity and tolerations of a request.
request    as weir submit takes it, but ps, workers and batch may be plain
           numbers. program: {"name": "a.py", "digest": "sha256-..."}; jobs
           of one digest share their observations, finished jobs included.
           A batch above device_batch_max a device takes several passes for
           one update.
current    generation: the newest one so far.
observed   batch; nodes: their number, or their names; samples_per_second, or
           step_s of a batch. One for each size that ran. sync_s: not used.
progress   samples, of total_samples: examples, counted as those of the first
           batch (batch.start). loss: pairs of samples and loss.
           gradient_noise: its scale, in examples; with ps, gradients are
           stale unless the request has consistency: global-batch. profile:
           the model's parameters, bytes, variables, flops_per_sample.
pause_s    the measured pause of a change.
quotas     {"team-a": {"cpu": 8, "memory_gib": 32, "gpu": 1}} by namespace.
A job that is missing from a line has ended. A decision frees capacity once
current shows it: repeat the line, with the same now, until nothing changes."""


@command(EXAMPLES)
@option(
    "--policy",
    type=Value(parse_policy, offers=sorted(POLICIES)),
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
    LINE_FORMAT,
    "the fields of a line, with an example",
)
@help_page("fields", "more fields of a line", FIELDS, "all fields of a line")
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
