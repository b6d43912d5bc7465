"""The jobs: what each has, how fast it is, how well it learns, how far it is and how long it takes
still. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from services.cli.jobs_table import PHASES
from services.console.board.derived import left_s, losses, over, share
from services.console.board.story import Story
from services.console.top.bars import curve, progress
from services.console.top.cells import UNKNOWN, cores, gib, loss, percent, size, speed, time_left
from services.console.top.fitting import capped, fitting, longest
from services.console.top.palette import MANY, Letters, badge
from services.console.top.plain_table import GAP, plain_table
from shared.text import headline

BADGE = 3
NAME = 12
LONGEST_NAME = 28
PHASE = 9
CURVE = 8
SHORT_CURVE = 5
BAR = 10
LEFT = 10
WHY = 24
YIELDING = ("CURVE", "GEN", "LOSS", "EXAMPLES/S", "WORKERS", "PS")
"""Left out in this order where even the shortest name leaves too little room."""
Cell = Callable[[Story], Text | str]


def job_table(jobs: Sequence[Story], letters: Letters, width: int) -> Table:
    """More columns where there is more room; the curve is shorter, or not there, where numbers are
    long.
    """
    cells = {heading: [cell(job) for job in jobs] for heading, cell in columns(width).items()}
    least = fitting({"JOB": NAME} | _least(cells, width), YIELDING, width - BADGE - GAP, GAP)
    del least["JOB"]
    name = min(
        max(width - sum(least.values()) - len(least) - BADGE - 2, NAME),
        _most(jobs, width, "WHY" in least),
    )
    drawn = plain_table(("", "JOB", *least), RIGHT, [BADGE, name, *least.values()], width)
    drawn.columns[1].max_width = name
    for number, job in enumerate(jobs):
        letter = letters.get(job.key)
        first = badge(letter) if letter and letter != MANY else Text(f" {letter or ' '} ")
        shown = {heading: cells[heading][number] for heading in least}
        if "CURVE" in shown:
            shown["CURVE"] = curve(losses(job), least["CURVE"])
        drawn.add_row(first, Text(_name(job), "bold"), *shown.values())
    return drawn


def _most(jobs: Sequence[Story], width: int, reasoned: bool) -> int:
    """Columns that names may take. Beside a reason no more than they need: what is left is the
    reason's.
    """
    needed = longest(_name(job) for job in jobs) if reasoned else LONGEST_NAME
    return max(min(needed, capped(LONGEST_NAME, width)), NAME)


def _least(cells: Mapping[str, Sequence[Text | str]], width: int) -> dict[str, int]:
    """What each column needs for its heading and all that stands in it; the curve has of its own
    what is left.
    """
    least = {
        heading: max(LEAST.get(heading, len(heading)), longest(cells[heading])) for heading in cells
    }
    least |= {"WHY": WHY} if "WHY" in least else {}
    over = BADGE + NAME + sum(least.values()) + GAP * (len(least) + 1) - width
    return least | {"CURVE": min(max(CURVE - over, SHORT_CURVE), CURVE)}


def in_order(jobs: Iterable[Story]) -> list[Story]:
    """Those that are not over, oldest first; then those that are, the newest end first."""
    return sorted(
        jobs,
        key=lambda j: (
            over(j.view),
            -j.view.finished_s if over(j.view) else j.view.submitted_s,
            j.uid,
        ),
    )


def _name(job: Story) -> str:
    namespace, _, name = job.key.partition(".")
    return name if namespace == "default" else f"{namespace}/{name}"


def _phase(job: Story) -> Text:
    return Text(job.view.shown_phase, PHASES.get(job.view.shown_phase, ""))


def _curve(job: Story) -> str:
    return curve(losses(job), CURVE)


def _why(job: Story) -> Text:
    return Text(headline(job.view.why or job.view.reason), "dim")


NARROW: dict[str, Cell] = {
    "PHASE": _phase,
    "PS": lambda job: size(job.view.ps, job.view.wanted_ps),
    "WORKERS": lambda job: size(job.view.workers, job.view.wanted_workers),
    "EXAMPLES/S": lambda job: speed(job.view.samples_per_second),
    "LOSS": lambda job: loss(job.view.loss),
    "CURVE": _curve,
    "DONE": lambda job: percent(share(job.view)),
    "LEFT": lambda job: time_left(left_s(job.view)),
}
MORE: dict[str, Cell] = {
    "GEN": lambda job: str(job.view.generation or UNKNOWN),
    "CORES": lambda job: cores(job.held_cpu),
    "GIB": lambda job: gib(job.holding.memory_gib),
}
BARS: dict[str, Cell] = {"": lambda job: progress(share(job.view), BAR)}
LEAST = {
    "PHASE": PHASE,
    "EXAMPLES/S": 10,
    "LOSS": 6,
    "CURVE": CURVE,
    "DONE": 5,
    "": BAR,
    "LEFT": LEFT,
    "GIB": 5,
    "WHY": WHY,
}
ALL: dict[str, Cell] = {"WHY": _why}
WIDE = 104
WIDER = 120
WIDEST = 140
"""Columns from which on there is more, a bar, and the reason."""
RIGHT = ("PS", "WORKERS", "EXAMPLES/S", "LOSS", "DONE", "LEFT", "GEN", "CORES", "GIB")
ORDER = (
    "PHASE",
    "GEN",
    "PS",
    "WORKERS",
    "CORES",
    "GIB",
    "EXAMPLES/S",
    "LOSS",
    "CURVE",
    "DONE",
    "",
    "LEFT",
    "WHY",
)


def columns(width: int) -> dict[str, Cell]:
    known = NARROW | (MORE if width >= WIDE else {}) | (BARS if width >= WIDER else {})
    known |= ALL if width >= WIDEST else {}
    return {heading: known[heading] for heading in ORDER if heading in known}
