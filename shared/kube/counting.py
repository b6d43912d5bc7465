"""What was asked of the API, counted. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from shared.metrics import Family, Measure

NO_ANSWER = 0
ASKED = Family(
    name="weir_kubernetes_requests_total",
    kind="counter",
    help="Requests to the Kubernetes API, by verb and HTTP status (0: there was no answer).",
    labels=("verb", "status"),
)
WAITED = Family(
    name="weir_kubernetes_throttled_seconds_total",
    kind="counter",
    help="Time that requests waited for our own limit, or because the server wanted silence.",
)


class Requests(msgspec.Struct, frozen=True):
    """By verb and status ("list 200"; status 0: no answer), and the seconds that they waited for
    our own limit.
    """

    counts: Mapping[str, int] = {}
    waited_s: float = 0.0

    def total(self) -> int:
        return sum(self.counts.values())


def counted(requests: Requests, verb: str, status: int) -> Requests:
    key = f"{verb} {status}"
    return replace(requests, counts={**requests.counts, key: requests.counts.get(key, 0) + 1})


def waited(requests: Requests, seconds: float) -> Requests:
    return replace(requests, waited_s=requests.waited_s + seconds)


def between(earlier: Requests, later: Requests) -> Requests:
    """What came after `earlier`."""
    more = {key: count - earlier.counts.get(key, 0) for key, count in later.counts.items()}
    return Requests(
        counts={k: n for k, n in sorted(more.items()) if n},
        waited_s=later.waited_s - earlier.waited_s,
    )


def measures(requests: Requests) -> tuple[Measure, ...]:
    by_labels = {tuple(key.split(" ")): float(count) for key, count in requests.counts.items()}
    return Measure(ASKED, by_labels), Measure(WAITED, {(): requests.waited_s})
