"""What would come of a proposed job: what `weir submit --dry-run` says, asked by a browser. Pure but for the rules,
which are read from the environment as the allocator reads them.

Nothing is asked for and nothing kept. Whether the program itself is sound is not looked at: only its size matters here.
"""

from __future__ import annotations

import msgspec

from services.allocator.proposal import outlook
from services.allocator.requests.validate import Wrong, check
from services.allocator.rules import Rules
from services.allocator.state import State
from services.cli import dry_run, request_file
from services.cli.trouble import Trouble
from shared.words import plain

NAME = "the proposal"
NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
EXAMPLE = """\
job: proposal
program: program.py
epochs: 3
batch: 64
ps: {start: 1, min: 1, max: 2}
workers: {start: 2, min: 1, max: 4}
resources:
  ps: {cpu: 0.25, memory_gib: 1}
  worker: {cpu: 0.5, memory_gib: 1}
"""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`refused`: every reason against it; else `says`, line by line, what would happen."""

    says: list[str] = []
    refused: list[str] = []


def answer(state: State, text: str, now_s: float, rules: Rules) -> Answer:
    """`text`: a job's YAML file, as `weir submit` takes it."""
    try:
        fields = request_file.completed(request_file.parse(text, NAME), NO_PROGRAM, "-")
        request = check(request_file.encoded(fields, NAME), rules)
    except Trouble as trouble:
        return Answer(refused=[plain(str(trouble))])
    if isinstance(request, Wrong):
        return Answer(refused=[*map(plain, request.reasons)])
    found = outlook(state, request, now_s, rules)
    if found.reasons:
        return Answer(refused=[*map(plain, found.reasons)])
    return Answer(says=[*map(plain, dry_run.told(request.key().replace(".", "/"), found))])
