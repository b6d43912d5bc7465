"""The checkpoint policy: how often to save if a request does not say, and which checkpoints to
keep.

A save costs training time; work since the last one is lost in a failure. Young's first-order
optimum (J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974):

    T = sqrt(2 C M)     C: seconds of training that one save costs, M: mean seconds between failures

J. T. Daly ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006) adds terms that matter if C comes near M; our bounds end
long before that.

C is measured at each save that was due, not at a save for a hand-over or a drain. The lower median
of the last `MEASUREMENTS` counts, so that one slow save changes nothing. M begins with a guess that
counts like one failure seen in `PRIOR_S`. So with n failures in t seconds of training

    M = (PRIOR_S + t) / (1 + n)

which is our choice (the mean of a failure rate with a prior of that weight).

After a loss the training since the last complete save is repeated: at most the interval, the save
before it and the save after it. The interval is bounded so that this is no more than `redo_s` (a
setting), unless saving would take more than `MAX_SAVE_SHARE` of the time:

    T <= max(redo_s - 2 D, C (1 / MAX_SAVE_SHARE - 1))     D: seconds of one save with its drain

The newest few checkpoints, which the ledger names, are kept, and those later than the newest named
one, which may still be in progress. An earlier checkpoint that the ledger does not name will never
be named: it was named once, or given up incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from math import sqrt
from statistics import median_low

import msgspec

from shared.messages import NotNegative, Seconds

PRIOR_S = 3600.0  # between failures, as first guess: machines that may be taken away
FIRST_INTERVAL_S = 30.0  # until the first save, which measures the cost
MIN_INTERVAL_S = 10.0
REDO_S = 60.0  # of training that may be repeated
MAX_SAVE_SHARE = 0.1  # of the time, for saving alone
DELTA_SHARE = 0.03  # of the time, for saves of changed rows
MIN_DELTA_S = 2.0
MAX_DELTA_S = 8.0
FEWEST_COSTS = 3
MEASUREMENTS = 5
GENERATION_FOLDER = re.compile(r"gen-(\d+)")
CHECKPOINT_FILE = re.compile(r"ckpt-(\d+)(?:_temp|\..+)")
REHEARSAL = "rehearsal"
REHEARSAL_FILE = re.compile(rf"{REHEARSAL}(?:_temp|\..+)")
CHECKPOINT_PATH = re.compile(r"gen-(\d+)/ckpt-(\d+)$")
CheckpointAge = tuple[int, int]
"""Generation and step: the later of two checkpoints is the greater."""


class SaveHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The saves and failures of a job. `ran_s`: training; `cost_s`: C, None before the first
    measurement.

    `costs_s`, `took_s`: costs and durations of the last saves that were due.
    """

    ran_s: Seconds = 0.0
    failures: NotNegative = 0
    cost_s: Seconds | None = None
    costs_s: tuple[Seconds, ...] = ()
    took_s: tuple[Seconds, ...] = ()


def young_interval(cost_s: float, between_s: float) -> float:
    return sqrt(2.0 * cost_s * between_s)


def mean_time_between_failures(past: SaveHistory) -> float:
    """Return M."""
    return (PRIOR_S + past.ran_s) / (1 + past.failures)


def save_interval(past: SaveHistory, redo_s: float = REDO_S) -> float:
    """Return the seconds from the end of a save to the next."""
    if past.cost_s is None:
        return min(FIRST_INTERVAL_S, redo_s)
    affordable_s = past.cost_s * (1 / MAX_SAVE_SHARE - 1)
    most_s = max(redo_s - 2 * typical_seconds(past.took_s), affordable_s, MIN_INTERVAL_S)
    return min(
        max(young_interval(past.cost_s, mean_time_between_failures(past)), MIN_INTERVAL_S), most_s
    )


def delta_interval(past: SaveHistory) -> float:
    """Return the seconds from the end of a save to the next for models with tables, whose saves
    have changed rows only: as often as `DELTA_SHARE` of the time allows.

    More rows change in a longer interval, so the cost grows with it. An interval longer than
    `MAX_DELTA_S` is chosen only to keep saves below `MAX_SAVE_SHARE` of the time, and after
    `FEWEST_COSTS` costs are measured: the first save of a job is slow, because its first base is
    written at the same time.
    """
    if past.cost_s is None:
        return MIN_DELTA_S
    longest_s = MAX_DELTA_S
    if len(past.costs_s) >= FEWEST_COSTS:
        longest_s = max(MAX_DELTA_S, past.cost_s * (1 / MAX_SAVE_SHARE - 1))
    return min(max(past.cost_s * (1 / DELTA_SHARE - 1), MIN_DELTA_S), longest_s)


def max_repeated_s(past: SaveHistory, interval_s: float) -> float:
    """Return the seconds of training that are repeated at most after a loss, with this interval."""
    return interval_s + 2 * typical_seconds(past.took_s)


def typical_seconds(seconds: Sequence[float]) -> float:
    """Return the lower median; 0 without measurements."""
    return median_low(seconds) if seconds else 0.0


def save_cost(pause_s: float, write_s: float, did: float, speed: float) -> float:
    """Return C of one save in s: its pause, and the training time lost while it was written.

    `did`: examples applied during the `write_s` after the pause. `speed`: examples a second before
    (0: unknown, and then the whole time counts as lost).
    """
    worth_s = did / speed if speed > 0 else 0.0
    return pause_s + max(write_s - worth_s, 0.0)


def record_save(
    past: SaveHistory, ran_s: float, cost_s: float | None, took_s: float = 0.0
) -> SaveHistory:
    """Return the history after `ran_s` more seconds of training and a save.

    `cost_s`: C of the save; None if it was not due.
    """
    past = msgspec.structs.replace(past, ran_s=past.ran_s + ran_s)
    if cost_s is None:
        return past
    before = past.costs_s
    if not before and past.cost_s is not None:  # an older version kept one number
        before = (past.cost_s,)
    costs_s, all_took_s = (*before, cost_s)[-MEASUREMENTS:], (*past.took_s, took_s)[-MEASUREMENTS:]
    return msgspec.structs.replace(
        past, cost_s=typical_seconds(costs_s), costs_s=costs_s, took_s=all_took_s
    )


def record_failure(past: SaveHistory) -> SaveHistory:
    return msgspec.structs.replace(past, failures=past.failures + 1)


def generation_of_folder(folder: str) -> int | None:
    """Return the generation of a folder's name; None if it is no generation's folder."""
    found = GENERATION_FOLDER.fullmatch(folder)
    return int(found[1]) if found else None


def is_obsolete(number: int, name: str, kept: Set[CheckpointAge]) -> bool:
    """Return whether a file of this generation can be removed. `kept`: checkpoints that stay."""
    if REHEARSAL_FILE.fullmatch(name):
        return is_generation_closed(number, kept)
    found = CHECKPOINT_FILE.fullmatch(name)
    if found is None or not kept:
        return False
    age = (number, int(found[1]))
    return age not in kept and age < max(kept)


def is_generation_closed(number: int, kept: Set[CheckpointAge]) -> bool:
    """Return whether nothing writes into this generation's folder any more."""
    return bool(kept) and number < max(kept)[0]


def checkpoint_age(path: str) -> CheckpointAge | None:
    """Return the age of a checkpoint; None for a path that is not one."""
    found = CHECKPOINT_PATH.search(path)
    return (int(found[1]), int(found[2])) if found else None


def checkpoint_ages(paths: Iterable[str]) -> frozenset[CheckpointAge]:
    """Return the ages of those paths that are checkpoints."""
    return frozenset(age for path in paths if (age := checkpoint_age(path)) is not None)
