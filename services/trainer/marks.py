"""What a chief's reports are in TensorBoard: numbers by name, and a pause as words. Pure.

Every curve is over examples applied, which mean the same whatever the batch is, and goes on through
all generations.

    loss                   mean over the examples since the point before
    examples_per_second    examples since the point before, over the time since then, of at least LEAST_S
    epoch                  complete epochs
    update                 updates applied
    tasks/ps, tasks/workers, tasks/batch        of the generation that trains; a batch is in examples
    learning_rate          of this generation, where it is not a schedule of the program's own
    pause/seconds          how long training stood still for a hand-over; pause/marks tells of each in words

A point is written when SPACING of a generation's time has passed since the one before, and not
before LEAST_S: each report of the first minutes, a few thousand points of a week; and the last one
before a hand-over or the end.
"""

from __future__ import annotations

import math

import msgspec

from services.trainer.orders import Assignment, Progress, Resumed
from shared import text

LEAST_S, SPACING = 0.5, 1 / 500


class Size(msgspec.Struct, frozen=True):
    """Of a generation; `batch` in examples."""

    generation: int
    ps: int
    workers: int
    batch: int


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What was reported since the last point. `lost`: sum of loss x examples; `weighed`: the
    examples in it.

    `since`: the last point's examples, and when it was (`since_s`, of a clock that only rises);
    `began_s`: when the generation did.
    """

    began_s: float
    since_s: float
    since: int
    lost: float = 0.0
    weighed: int = 0
    newest: int = 0


def size_of(assignment: Assignment) -> Size:
    ps, workers = (len(assignment.cluster.get(role, ())) for role in ("ps", "worker"))
    return Size(assignment.generation, ps, workers, assignment.batch)


def begun(samples: int, now_s: float) -> Gathered:
    return Gathered(began_s=now_s, since_s=now_s, since=samples, newest=samples)


def gathered(so_far: Gathered, word: Progress) -> Gathered:
    """With one more report, whose loss is the mean over the examples since the report before."""
    more = word.samples - so_far.newest
    if word.loss is None or not math.isfinite(word.loss) or more <= 0:
        return msgspec.structs.replace(so_far, newest=word.samples)
    lost, weighed = so_far.lost + word.loss * more, so_far.weighed + more
    return msgspec.structs.replace(so_far, lost=lost, weighed=weighed, newest=word.samples)


def is_due(so_far: Gathered, now_s: float) -> bool:
    return now_s - so_far.since_s >= max(LEAST_S, SPACING * (now_s - so_far.began_s))


def numbers(so_far: Gathered, word: Progress, size: Size, now_s: float) -> dict[str, float]:
    """The point that the newest report makes, with all since the one before.

    Behind a very short time nothing is said of the speed.
    """
    passed_s = now_s - so_far.since_s
    loss = {"loss": so_far.lost / so_far.weighed} if so_far.weighed else {}
    speed = (
        {"examples_per_second": max(0, word.samples - so_far.since) / passed_s}
        if passed_s >= LEAST_S
        else {}
    )
    return {
        **loss,
        **speed,
        "epoch": float(word.epoch),
        "update": float(word.step),
        **sizes(size),
    }


def after(so_far: Gathered, word: Progress, now_s: float) -> Gathered:
    """Behind that point."""
    return Gathered(began_s=so_far.began_s, since_s=now_s, since=word.samples, newest=word.samples)


def sizes(size: Size) -> dict[str, float]:
    return {
        "tasks/ps": float(size.ps),
        "tasks/workers": float(size.workers),
        "tasks/batch": float(size.batch),
    }


def beginning(word: Resumed, size: Size) -> dict[str, float]:
    """What is known once a generation trains."""
    rate = {} if word.learning_rate is None else {"learning_rate": word.learning_rate}
    pause = {} if word.pause_s is None else {"pause/seconds": word.pause_s}
    return {**sizes(size), **rate, **pause}


def told(word: Resumed, size: Size) -> str:
    """One line of Markdown: what trains from here on, and what it cost."""
    tasks = f"{text.format_size(size.ps, size.workers)}, batch {size.batch}"
    what = f"**generation {size.generation}** ({tasks}) trains from example {word.samples:,} on"
    if word.pause_s is None:
        return f"{what}."
    parts = f"restore {word.restore_s:.2f} s, first step {word.first_step_s:.2f} s"
    return f"{what}, after a pause of **{word.pause_s:.2f} s** (of it {parts})."
