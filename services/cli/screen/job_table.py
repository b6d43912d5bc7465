"""The jobs: what each has, how fast it is, how well it learns, how far it is and how long it takes still. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.table import Table
from rich.text import Text

from services.board.derived import left_s, losses, over, share
from services.board.story import Story
from services.cli.jobs_table import PHASES
from services.cli.screen.bars import curve, progress
from services.cli.screen.cells import UNKNOWN, cores, loss, percent, size, speed, time_left
from services.cli.screen.palette import MANY, Letters, badge
from services.cli.screen.plain_table import plain_table
from shared.words import headline

NAME, LONGEST_NAME, PHASE, CURVE, BAR, LEFT = 12, 28, 9, 8, 10, 10
Cell = Callable[[Story], Text | str]


def job_table(jobs: Iterable[Story], letters: Letters, width: int) -> Table:
    """More columns where there is more room."""
    shown = columns(width)
    name = NAME if width < WIDE else LONGEST_NAME
    drawn = plain_table(("", "JOB", *shown), RIGHT, [3, name, *(LEAST.get(heading, 0) for heading in shown)], width)
    drawn.columns[1].max_width = name
    for job in jobs:
        letter = letters.get(job.key)
        first = badge(letter) if letter and letter != MANY else Text(f" {letter or ' '} ")
        drawn.add_row(first, Text(_name(job), "bold"), *(cell(job) for cell in shown.values()))
    return drawn


def in_order(jobs: Iterable[Story]) -> list[Story]:
    """Those that are not over, oldest first; then those that are, the newest end first."""
    return sorted(jobs, key=lambda j: (over(j.view), -j.view.finished_s if over(j.view) else j.view.submitted_s, j.uid))


def _name(job: Story) -> str:
    namespace, _, name = job.key.partition(".")
    return name if namespace == "default" else f"{namespace}/{name}"


def _phase(job: Story) -> Text:
    return Text(job.view.phase, PHASES.get(job.view.phase, ""))


def _curve(job: Story) -> str:
    return curve(losses(job), CURVE)


def _why(job: Story) -> Text:
    return Text(headline(job.view.why or job.view.reason), "dim")


NARROW: dict[str, Cell] = {
    "PHASE": _phase,
    "PS": lambda job: size(job.view.ps, job.view.wanted_ps),
    "WORKERS": lambda job: size(job.view.workers, job.view.wanted_workers),
    "SAMPLES/S": lambda job: speed(job.view.samples_per_second),
    "LOSS": lambda job: loss(job.view.loss),
    "CURVE": _curve,
    "DONE": lambda job: percent(share(job.view)),
    "LEFT": lambda job: time_left(left_s(job.view)),
}
MORE: dict[str, Cell] = {
    "GEN": lambda job: str(job.view.generation or UNKNOWN),
    "CORES": lambda job: cores(job.held_cpu),
    "": lambda job: progress(share(job.view), BAR),
}
LEAST = {"PHASE": PHASE, "SAMPLES/S": 9, "LOSS": 6, "CURVE": CURVE, "DONE": 5, "": BAR, "LEFT": LEFT}
ALL: dict[str, Cell] = {"WHY": _why}
WIDE, WIDEST = 104, 132
RIGHT = ("PS", "WORKERS", "SAMPLES/S", "LOSS", "DONE", "LEFT", "GEN", "CORES")
ORDER = ("PHASE", "GEN", "PS", "WORKERS", "CORES", "SAMPLES/S", "LOSS", "CURVE", "DONE", "", "LEFT", "WHY")


def columns(width: int) -> dict[str, Cell]:
    known = NARROW | (MORE if width >= WIDE else {}) | (ALL if width >= WIDEST else {})
    return {heading: known[heading] for heading in ORDER if heading in known}
