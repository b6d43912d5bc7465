"""The outcome of a proposed job for a browser, as `weir submit --dry-run` prints it.

Nothing is requested or stored. Only the size of the job matters; its program is not examined. The
rules are read from the environment, as the allocator reads them.
"""

from __future__ import annotations

import msgspec

from services.allocator.admission.validation import InvalidRequest, check_request
from services.allocator.placement.free_capacity import free_nodes
from services.allocator.placement.placers import ROLES, place
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.allocator.state.state import State
from services.console import dry_run, job_file
from services.console.trouble import Trouble
from services.whatif.proposal import outlook
from shared.messages import Resources, RoleResources
from shared.text import single_line

NAME = "the proposal"
NO_POLICY_NAMED = (
    "the job names none, and the cluster may use another; to be sure, add a line such as `policy:"
    " static`"
)
"""A user of the page cannot change settings, but can add a line to the proposal."""
NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
EXAMPLE = """\
job: proposal
program: program.py
epochs: 3
batch: 64
ps: {start: 1, min: 1, max: 2}
workers: {start: 2, min: 1, max: 4}
resources:
"""
EXAMPLE_SIZE = Size(ps=1, workers=2)
EXAMPLE_TASKS = tuple(
    RoleResources(
        chief=Resources(cpu=small, memory_gib=gib),
        ps=Resources(cpu=small, memory_gib=gib),
        worker=Resources(cpu=large, memory_gib=gib),
    )
    for small, large, gib in ((0.25, 0.5, 1.0), (0.1, 0.2, 1.0), (0.05, 0.1, 0.5))
)
"""Sizes of the example's tasks, the largest first."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: every reason against the job; otherwise `says` has the lines of the outlook."""

    says: list[str] = []
    refused: list[str] = []


def example_proposal(state: State) -> str:
    """Return a proposal to start from, with the largest tasks that fit now; the smallest ones if
    none fit.
    """
    text = EXAMPLE
    sizes = _largest_fitting_tasks(state)
    for role in ROLES:
        text += f"  {role}: {_format_resources(getattr(sizes, role))}\n"
    return text


def _largest_fitting_tasks(state: State) -> RoleResources:
    nodes = [node for node in free_nodes(state) if node.takes]
    for sizes in EXAMPLE_TASKS:
        if place(Room(nodes), NAME, (), EXAMPLE_SIZE, sizes, 0):
            return sizes
    return EXAMPLE_TASKS[-1]


def _format_resources(wants: Resources) -> str:
    return f"{{cpu: {wants.cpu:g}, memory_gib: {wants.memory_gib:g}}}"


def answer_proposal(state: State, text: str, now_s: float, rules: Rules) -> Answer:
    """`text`: a job's YAML file, as `weir submit` takes it."""
    try:
        fields = job_file.complete_fields(job_file.parse_fields(text, NAME), NO_PROGRAM, "-")
        request = check_request(job_file.encode_fields(fields, NAME), rules)
    except Trouble as trouble:
        return Answer(refused=[single_line(str(trouble))])
    if isinstance(request, InvalidRequest):
        return Answer(refused=[*map(single_line, request.reasons)])
    found = outlook(state, request, now_s, rules)
    if found.reasons:
        return Answer(refused=[*map(single_line, found.reasons)])
    lines = dry_run.describe_outlook(request.key().replace(".", "/"), found, NO_POLICY_NAMED)
    return Answer(says=[*map(single_line, lines)])
