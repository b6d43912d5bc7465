"""How often to save, where a request does not say. Pure.

A save costs training time; work since the last one is lost in a failure. Young's first-order optimum (J. W. Young, "A
first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974):

    T = sqrt(2 C M)     C: seconds of training that one save costs, M: mean seconds between failures

J. T. Daly ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006) adds terms that count where C comes near M; our bounds end long before that.

C is measured at each save. M begins with a guess, which counts as if the job had seen it itself: one failure in
`PRIOR_S`. So with n failures in t seconds of training

    M = (PRIOR_S + t) / (1 + n)

which is our choice (the mean of a failure rate with a prior of that weight). Both bounds are ours, too.
"""

from __future__ import annotations

from math import sqrt

import msgspec

from shared.messages import NotNegative, Seconds

PRIOR_S = 3600.0  # between failures, as long as nothing is known: machines that may be taken away
FIRST_S = 60.0  # until the first save, which measures what one costs
LEAST_S, MOST_S = 10.0, 600.0
WEIGHT = 0.5  # of the newest measurement; the ones before count half as much each


class Past(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job has seen of saves and failures. `ran_s`: training; `cost_s`: C, None where none was measured yet."""

    ran_s: Seconds = 0.0
    failures: NotNegative = 0
    cost_s: Seconds | None = None


def young(cost_s: float, between_s: float) -> float:
    return sqrt(2.0 * cost_s * between_s)


def between_failures(past: Past) -> float:
    """M."""
    return (PRIOR_S + past.ran_s) / (1 + past.failures)


def chosen(past: Past) -> float:
    """Seconds from the end of a save to the next."""
    if past.cost_s is None:
        return FIRST_S
    return min(max(young(past.cost_s, between_failures(past)), LEAST_S), MOST_S)


def lost(pause_s: float, write_s: float, did: float, speed: float) -> float:
    """C of one save, in seconds: the pause, and what writing took from the training that went on beside it.

    `did`: examples applied during the `write_s` behind the pause; `speed`: examples a second before (0: not known,
    and then nothing is said to have been done).
    """
    worth_s = did / speed if speed > 0 else 0.0
    return pause_s + max(write_s - worth_s, 0.0)


def saved(past: Past, ran_s: float, cost_s: float | None) -> Past:
    """After `ran_s` seconds more of training, and a save that cost so much (None: it was not one of these)."""
    known = past.cost_s
    if cost_s is not None:
        known = cost_s if known is None else WEIGHT * cost_s + (1 - WEIGHT) * known
    return msgspec.structs.replace(past, ran_s=past.ran_s + ran_s, cost_s=known)


def failed(past: Past) -> Past:
    return msgspec.structs.replace(past, failures=past.failures + 1)
