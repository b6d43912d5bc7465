"""What follows from a board, by formula: pure.

share done       = examples applied / examples to apply
time left        = (examples to apply - applied) / examples a second, a mean of its reports (the newest counts most)
utilisation      = cores held by our tasks / allocatable cores;   of use: cores used / allocatable cores
memory share     = GiB held by our tasks / allocatable GiB;       of use: GiB used / allocatable GiB
speed            = examples between the first and the last report of a generation / the seconds between them
speed before     = the same, up to the last report before a decision: the change it leads to slows what trains meanwhile
slowed by it     = (t2 - t1) - (n2 - n1) / speed before      [s], from that report to the last before the hand-over
CPU-hours        = sum of cores held x hours, pauses and waiting for images included
wasted           = examples that had been applied and were lost with what was not saved
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from services.allocator.job_views import ENDED, JobView
from services.console.board.nodes import Totals
from services.console.board.story import Decision, Report, Story, Stretch

HOUR_S = 3600.0
BARS = 24
"""Points of a small curve beside a job's name."""


def share(view: JobView) -> float | None:
    """Of the examples, 0 to 1; None: not known how many there are."""
    return min(view.samples / view.total_samples, 1.0) if view.total_samples else None


def left_s(view: JobView) -> float | None:
    """Seconds to the end at the speed of late; None: it does not train, or has not said how
    fast.
    """
    speed = view.mean_samples_per_second or view.samples_per_second
    if over(view) or not view.total_samples or speed <= 0:
        return None
    return max(view.total_samples - view.samples, 0) / speed


def over(view: JobView) -> bool:
    return view.phase in ENDED.values()


def utilisation(totals: Totals) -> float | None:
    """Share of the cores that our tasks hold; None: there are none."""
    return totals.ours / totals.allocatable if totals.allocatable else None


def use(totals: Totals) -> float | None:
    """Share of the cores that our tasks use, as they last reported."""
    return totals.used / totals.allocatable if totals.allocatable else None


def memory_share(totals: Totals) -> float | None:
    """Share of the memory that our tasks hold; None: there is none."""
    return totals.ours_gib / totals.allocatable_gib if totals.allocatable_gib else None


def memory_use(totals: Totals) -> float | None:
    """Share of the memory that our tasks use, as they last reported."""
    return totals.used_gib / totals.allocatable_gib if totals.allocatable_gib else None


def speed(stretch: Stretch) -> float | None:
    """Examples a second while a generation trained; None where it did not report twice."""
    first, last = stretch.first, stretch.last
    if first is None or last is None or last.at_s <= first.at_s:
        return None
    return (last.samples - first.samples) / (last.at_s - first.at_s)


def core_seconds(story: Story, now_s: float) -> float:
    """Held up to now; nothing more once it is over and its pods are gone."""
    since_s = story.held[-1].at_s if story.held else now_s
    return story.core_s + story.held_cpu * max(now_s - since_s, 0.0)


def cpu_hours(story: Story, now_s: float) -> float:
    return core_seconds(story, now_s) / HOUR_S


def pauses_s(story: Story) -> list[float]:
    """The known ones, oldest first."""
    return [stretch.pause_s for stretch in story.stretches if stretch.pause_s is not None]


def last_pause_s(story: Story) -> float | None:
    """Where what was said of it is gone, as the allocator's stored state has it."""
    return next(reversed((*story.view.pauses, *pauses_s(story))), None)


def losses(story: Story, most: int = BARS) -> list[float]:
    """The last reported ones, oldest first."""
    return [report.loss for report in story.reports[-most:] if report.loss is not None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision foresaw, and what came: the pause of the hand-over, speeds before the
    decision and after, and seconds of training that its preparation cost what trained meanwhile;
    None: not known, or it has not come (`abandoned` says why, where it will not). `applied`:
    examples, as last reported before the hand-over.
    """

    decision: Decision
    resumed_s: float | None = None
    pause_s: float | None = None
    before: float | None = None
    after: float | None = None
    slowed_s: float | None = None
    applied: int | None = None

    @property
    def reaction_s(self) -> float | None:
        """From the decision to its generation's first update."""
        return None if self.resumed_s is None else max(self.resumed_s - self.decision.at_s, 0.0)


def outcomes(story: Story) -> Iterable[Outcome]:
    """Of every decision that is known; of those of one generation (a change in place) the first
    began it.
    """
    trained = {stretch.generation: stretch for stretch in story.stretches}
    told: set[int] = set()
    for decision in story.decisions:
        came = trained.get(decision.generation)
        if came is None or decision.generation in told:
            yield Outcome(decision=decision)
            continue
        told.add(decision.generation)
        known = Outcome(
            decision=decision, resumed_s=came.resumed_s, pause_s=came.pause_s, after=speed(came)
        )
        before = trained.get(came.previous) if came.previous is not None else None
        yield _since(known, before, _report_by(story, before, decision.at_s)) if before else known


def _since(known: Outcome, before: Stretch, heard: Report | None) -> Outcome:
    """With what is known of the generation before. `heard`: its last report before the decision."""
    last, pace = before.last, _pace(before, heard)
    if last is None or heard is None or not pace:
        return replace(known, before=pace)
    slowed_s = (last.at_s - heard.at_s) - (last.samples - heard.samples) / pace
    return replace(known, before=pace, slowed_s=max(slowed_s, 0.0), applied=last.samples)


def _pace(stretch: Stretch, heard: Report | None) -> float | None:
    """Examples a second up to then; of a single report, what it says itself."""
    if heard is None:
        return None
    return speed(replace(stretch, last=heard)) or (
        heard.samples_per_second if heard == stretch.first else None
    )


def _report_by(story: Story, stretch: Stretch, at_s: float) -> Report | None:
    """The last one of a generation up to a time."""
    found = bisect_right(story.reports, at_s, key=lambda report: report.at_s)
    report = story.reports[found - 1] if found else None
    return report if report and report.generation == stretch.generation else None


def curve(reports: Iterable[Report]) -> list[tuple[float, float]]:
    """Loss over time: seconds since 1970, and the mean over the examples since the report
    before.
    """
    return [(report.at_s, report.loss) for report in reports if report.loss is not None]
