"""Where a job's time and its cores went. Pure.

    completion time   = end - submission, waiting included (now, where it has not ended)                  [s]
    waiting           = submission to the first update; paused = sum of the pauses; off = while the
                        whole cluster was; the rest trained                                                   [s]
    held              = integral of the cores that its pods requested, as the nodes' facts list them      [core-seconds]
    used              = sum of cores used, as its tasks measured, x seconds between two reports           [core-seconds]
    utilisation       = used / held                                                    of the job
                      = integral of cores requested / integral of allocatable cores    of the cluster

Each core-second that was held is in one of these parts, which add up to all of it:

    starting          before the first update: images, imports, building
    training          of tasks of the generation that trained
    beside            of other pods meanwhile: of a generation that was prepared, or that had to leave
    paused            while training stood still for a hand-over or after a crash
    ending            after the end, until the pods had gone

    done again        of training: examples lost with a ps or a chief / examples a second before / x cores had by then
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from services.console.board import series
from services.console.board.board import Board
from services.console.board.derived import speed
from services.console.board.nodes import Totals
from services.console.board.story import Story, Stretch


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Core-seconds."""

    starting: float = 0.0
    training: float = 0.0
    beside: float = 0.0
    paused: float = 0.0
    ending: float = 0.0

    @property
    def held(self) -> float:
        return self.starting + self.training + self.beside + self.paused + self.ending


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """`from_s` to `to_s`, of which `waited_s` to the first update (None: there was none).
    `done_again_core_s` is a part of training; `cluster_ours` and `cluster_all`: shares of the
    allocatable cores; None: nothing is known of nodes.
    """

    from_s: float
    to_s: float
    over: bool
    waited_s: float | None
    paused_s: float
    pauses: int
    off_s: float
    parts: Parts
    used_core_s: float
    lost: int
    done_again_core_s: float
    examples_per_second: float | None
    cluster_ours: float | None
    cluster_all: float | None

    @property
    def completion_s(self) -> float:
        return self.to_s - self.from_s

    @property
    def trained_s(self) -> float:
        stood_s = self.paused_s + self.off_s
        return (
            0.0 if self.waited_s is None else max(self.completion_s - self.waited_s - stood_s, 0.0)
        )

    @property
    def utilisation(self) -> float | None:
        """None where nothing was measured: no task that trains uses nothing."""
        return self.used_core_s / self.parts.held if self.used_core_s and self.parts.held else None


def account(board: Board, story: Story) -> Account:
    """Up to the job's end, or to the newest message where it has not ended."""
    to_s = ended_s(board, story)
    first_s = story.stretches[0].resumed_s if story.stretches else None
    shares = cluster_shares(board.cluster, story.asked_s, to_s)
    paused = [s for s in story.stretches if s.pause_s is not None]
    return Account(
        from_s=story.asked_s,
        to_s=to_s,
        over=story.finished is not None,
        waited_s=None if first_s is None else max(first_s - story.asked_s, 0.0),
        paused_s=story.paused_s,
        pauses=len(paused),
        off_s=story.off_s,
        parts=parts(board, story),
        used_core_s=story.used_core_s,
        lost=story.lost,
        done_again_core_s=sum(_done_again(*pair) for pair in pairwise(story.stretches)),
        examples_per_second=_mean_speed(story, first_s, to_s),
        cluster_ours=shares and shares[0],
        cluster_all=shares and shares[1],
    )


def ended_s(board: Board, story: Story) -> float:
    """When it was over by the stored facts: the last of its generations ended then."""
    if story.finished is None:
        return max(board.at_s, story.asked_s)
    last = story.runs.ended_s if story.runs else None
    return max(last or story.finished.finished_s or board.at_s, story.asked_s)


def _mean_speed(story: Story, first_s: float | None, to_s: float) -> float | None:
    """Examples applied from the first update to the end, pauses included; what was lost and done
    again counts once.
    """
    return story.applied / (to_s - first_s) if first_s is not None and to_s > first_s else None


def _done_again(before: Stretch, after: Stretch) -> float:
    at = speed(before)
    return after.lost / at * before.gives.cpu if at and before.gives and after.lost else 0.0


# ---------------------------------------------------------------- the parts of what was held


def parts(board: Board, story: Story) -> Parts:
    """Between any two moments at which something changed all is as it was at the first of them."""
    end_s = ended_s(board, story)
    last_s = max(board.at_s, end_s)
    edges = {story.asked_s, end_s, last_s, *(point.at_s for point in story.held)}
    edges |= {
        edge for s in story.stretches for edge in (s.resumed_s, s.ended_s) if edge is not None
    }
    sums: dict[str, float] = {}
    for since_s, until_s in pairwise(sorted(edges)):
        for name, cores in _split(story, _held_at(story, since_s), since_s, end_s).items():
            sums[name] = sums.get(name, 0.0) + cores * (until_s - since_s)
    return Parts(**sums)


def _held_at(story: Story, at_s: float) -> float:
    point = series.at(story.held, at_s)
    return point.cpu if point else 0.0


def _split(story: Story, held: float, at_s: float, end_s: float) -> dict[str, float]:
    """The cores held at a time, by part."""
    if at_s >= end_s and story.finished is not None:
        return {"ending": held}
    if not story.stretches or at_s < story.stretches[0].resumed_s:
        return {"starting": held}
    runs = next(
        (
            s
            for s in story.stretches
            if s.resumed_s <= at_s and (s.ended_s is None or at_s < s.ended_s)
        ),
        None,
    )
    if runs is None:
        return {"paused": held}
    own = min(held, _cores(story, runs, at_s, held))
    return {"training": own, "beside": held - own}


def _cores(story: Story, runs: Stretch, at_s: float, unknown: float) -> float:
    """Of a generation's tasks; they may change in place."""
    made = [d for d in story.decisions if d.generation == runs.generation and d.at_s <= at_s]
    if made:
        return made[-1].gives.cpu
    return runs.gives.cpu if runs.gives else unknown


def cluster_shares(
    totals: Sequence[Totals], from_s: float, to_s: float
) -> tuple[float, float] | None:
    """Of the allocatable core-seconds: requested by our jobs, requested by anybody."""
    spans = list(_spans(totals, from_s, to_s))
    whole = sum(t.allocatable * s for t, s in spans)
    if not whole:
        return None
    return sum(t.ours * s for t, s in spans) / whole, sum(
        (t.ours + t.others) * s for t, s in spans
    ) / whole


def _spans(totals: Sequence[Totals], from_s: float, to_s: float) -> Iterable[tuple[Totals, float]]:
    """Each sum, and for how long it was so between the two times."""
    ends = [*(t.at_s for t in totals[1:]), to_s]
    for total, end_s in zip(totals, ends, strict=False):
        lasted = min(end_s, to_s) - max(total.at_s, from_s)
        if lasted > 0:
            yield total, lasted
