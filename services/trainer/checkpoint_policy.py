"""How often to save, where a request does not say. Pure.

A save costs training time; work since the last one is lost in a failure. Young's first-order
optimum (J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974):

    T = sqrt(2 C M)     C: seconds of training that one save costs, M: mean seconds between failures

J. T. Daly ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006) adds terms that count where C comes near M; our bounds end
long before that.

C is measured at each save that was due, and not at one that a hand-over or a drain asked for. The
lower median of the last `KEPT` counts, so that one slow save changes nothing. M begins with a
guess, which counts as if the job had seen it itself: one failure in `PRIOR_S`. So with n failures
in t seconds of training

    M = (PRIOR_S + t) / (1 + n)

which is our choice (the mean of a failure rate with a prior of that weight).

After a loss the training since the last complete save is repeated: at most the interval, the save
before it and the save after it. The interval is bounded so that this is no more than `redo_s` (a
setting), unless more than `SHARE_MOST` of the time would go into saving:

    T <= max(redo_s - 2 D, C (1 / SHARE_MOST - 1))     D: seconds that one save takes, drain included

Which checkpoints stay: the newest few that the ledger has named, and what may be named yet; all
else goes. Pure.

What is later than the newest that is named may be under way. Of what is earlier, whatever is not
named never will be: it was named once, or given up half-written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt
from statistics import median_low

import msgspec

from shared.messages import NotNegative, Seconds

PRIOR_S = 3600.0  # between failures, as long as nothing is known: machines that may be taken away
FIRST_S = 30.0  # until the first save, which measures what one costs
LEAST_S = 10.0
REDO_S = 60.0  # of training, repeated at most
SHARE_MOST = 0.1  # of the time, for saving alone
KEPT = 5  # measurements


class Past(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job has seen of saves and failures. `ran_s`: training; `cost_s`: C, None where none
    was measured yet.

    `costs_s`, `took_s`: what the last saves that were due cost, and how long they took.
    """

    ran_s: Seconds = 0.0
    failures: NotNegative = 0
    cost_s: Seconds | None = None
    costs_s: tuple[Seconds, ...] = ()
    took_s: tuple[Seconds, ...] = ()


def young(cost_s: float, between_s: float) -> float:
    return sqrt(2.0 * cost_s * between_s)


def between_failures(past: Past) -> float:
    """M."""
    return (PRIOR_S + past.ran_s) / (1 + past.failures)


def chosen(past: Past, redo_s: float = REDO_S) -> float:
    """Seconds from the end of a save to the next."""
    if past.cost_s is None:
        return min(FIRST_S, redo_s)
    affordable_s = past.cost_s * (1 / SHARE_MOST - 1)
    most_s = max(redo_s - 2 * typical(past.took_s), affordable_s, LEAST_S)
    return min(max(young(past.cost_s, between_failures(past)), LEAST_S), most_s)


def repeated_s(past: Past, interval_s: float) -> float:
    """Seconds of training that are repeated at most after a loss, with this interval."""
    return interval_s + 2 * typical(past.took_s)


def typical(seconds: Sequence[float]) -> float:
    """The lower median; 0 where nothing was measured."""
    return median_low(seconds) if seconds else 0.0


def lost(pause_s: float, write_s: float, did: float, speed: float) -> float:
    """C of one save, in seconds: the pause, and what writing took from the training that went on
    beside it.

    `did`: examples applied during the `write_s` behind the pause; `speed`: examples a second before
    (0: not known, and then nothing is said to have been done).
    """
    worth_s = did / speed if speed > 0 else 0.0
    return pause_s + max(write_s - worth_s, 0.0)


def saved(past: Past, ran_s: float, cost_s: float | None, took_s: float = 0.0) -> Past:
    """After `ran_s` seconds more of training, and a save that cost so much (None: it was not due)
    and took so long.
    """
    past = msgspec.structs.replace(past, ran_s=past.ran_s + ran_s)
    if cost_s is None:
        return past
    before = past.costs_s or (
        () if past.cost_s is None else (past.cost_s,)
    )  # an older version kept one number
    costs_s, all_took_s = (*before, cost_s)[-KEPT:], (*past.took_s, took_s)[-KEPT:]
    return msgspec.structs.replace(
        past, cost_s=typical(costs_s), costs_s=costs_s, took_s=all_took_s
    )


def failed(past: Past) -> Past:
    return msgspec.structs.replace(past, failures=past.failures + 1)


GENERATION = re.compile(r"gen-(\d+)")
FILE = re.compile(r"ckpt-(\d+)(?:_temp|\..+)")
PATH = re.compile(r"gen-(\d+)/ckpt-(\d+)$")
Age = tuple[int, int]
"""Generation and step: the later of two checkpoints is the greater."""


def generation(folder: str) -> int | None:
    """Of a folder's name; None where it is none of ours."""
    found = GENERATION.fullmatch(folder)
    return int(found[1]) if found else None


def goes(number: int, name: str, kept: Sequence[str]) -> bool:
    """Whether a file of this generation goes, when `kept` are the paths that the ledger names."""
    found, ages = FILE.fullmatch(name), _ages(kept)
    if found is None or not ages:
        return False
    age = (number, int(found[1]))
    return age < max(ages) and age not in ages


def over(number: int, kept: Sequence[str]) -> bool:
    """Whether nobody writes into this generation's folder any more."""
    ages = _ages(kept)
    return bool(ages) and number < max(ages)[0]


def age(path: str) -> Age | None:
    """Return the age of a checkpoint; None for a path that is not one."""
    found = PATH.search(path)
    return (int(found[1]), int(found[2])) if found else None


def _ages(kept: Sequence[str]) -> set[Age]:
    return {found for path in kept if (found := age(path)) is not None}
