"""The rate limit of requests to the Kubernetes API, the backoff after errors, and request counts.

Rate limit. There are `burst` slots. A request takes one, and gives it back `burst / rate` seconds
after its answer begins. So two requests in one slot reach the server at least that far apart, and

    in any burst / rate seconds at most `burst` requests arrive,
    in any one second at most  burst * ceil(rate / burst)           (`most_in_a_second`)

That is less than a token bucket with the same figures allows (rate + burst), and needs no clock of
the server. Requests leave in the order in which they were made; none while the server wants a
pause (`Retry-After`).

Backoff after the n-th failure in a row, with a random number in [0, 1) ("equal jitter": Brooker,
Exponential Backoff And Jitter, 2015), so that clients that failed together do not return together:

    wait = min(longest, first * 2^(n - 1)) * (1 + random) / 2       (`backoff_s`)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import replace

from shared.runtime.metrics import Family, Measure

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
    help="Time that requests waited for the rate limit, or for a pause that the server requested.",
)


class Requests(msgspec.Struct, frozen=True):
    """Requests by verb and status ("list 200"; status 0: no answer), and the seconds that they
    waited for the rate limit.
    """

    counts: Mapping[str, int] = {}
    waited_s: float = 0.0

    def total(self) -> int:
        return sum(self.counts.values())


def add_request(requests: Requests, verb: str, status: int) -> Requests:
    key = f"{verb} {status}"
    return replace(requests, counts={**requests.counts, key: requests.counts.get(key, 0) + 1})


def add_wait(requests: Requests, seconds: float) -> Requests:
    return replace(requests, waited_s=requests.waited_s + seconds)


def requests_since(earlier: Requests, later: Requests) -> Requests:
    """Return the requests after `earlier`."""
    more = {key: count - earlier.counts.get(key, 0) for key, count in later.counts.items()}
    return Requests(
        counts={k: n for k, n in sorted(more.items()) if n},
        waited_s=later.waited_s - earlier.waited_s,
    )


def request_measures(requests: Requests) -> tuple[Measure, ...]:
    by_labels = {tuple(key.split(" ")): float(count) for key, count in requests.counts.items()}
    return Measure(ASKED, by_labels), Measure(WAITED, {(): requests.waited_s})


DOUBLINGS = 32  # after so many failures the backoff does not grow
LONGEST_HOLD_S = 300.0  # the longest pause that a server may impose
TOO_MANY, SERVER_TROUBLE = 429, 500


def backoff_s(count: int, first_s: float, longest_s: float, chance: float) -> float:
    return min(longest_s, first_s * 2.0 ** min(count - 1, DOUBLINGS)) * (1 + chance) / 2


def most_in_a_second(rate: float, burst: int) -> int:
    return burst * math.ceil(rate / burst)


def retry_after_s(status: int, retry_after: str | None) -> float:
    """Return the pause that an answer asks for: `Retry-After` in whole seconds, with status 429 or
    an error of the server.
    """
    wants_pause = status == TOO_MANY or status >= SERVER_TROUBLE
    if not wants_pause or not retry_after or not retry_after.isdecimal():
        return 0.0
    return min(float(retry_after), LONGEST_HOLD_S)


class RateLimiter:
    def __init__(self, rate: float, burst: int, chance: Callable[[], float]) -> None:
        self.slots = asyncio.Semaphore(burst)
        self.rest_s = burst / rate
        self.chance = chance
        self.open_s = 0.0  # by the loop's clock

    @asynccontextmanager
    async def request_slot(self) -> AsyncIterator[None]:
        """Hold a slot from the departure of a request to the beginning of its answer."""
        await self.slots.acquire()
        try:
            await self._until_open()
            yield
        finally:
            asyncio.get_running_loop().call_later(self.rest_s, self.slots.release)

    def pause(self, seconds: float) -> None:
        self.open_s = max(self.open_s, asyncio.get_running_loop().time() + seconds)

    async def _until_open(self) -> None:
        while (wait_s := self.open_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s + self.chance() * self.rest_s)
