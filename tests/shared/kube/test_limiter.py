"""What was asked, counted.

How often the API is asked, and how long is waited after trouble.
"""

from __future__ import annotations

import asyncio
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kube.limiter import (
    LONGEST_HOLD_S,
    RateLimiter,
    Requests,
    add_request,
    add_wait,
    backoff_s,
    most_in_a_second,
    request_measures,
    requests_since,
    retry_after_s,
)
from shared.runtime.http_server import format_metrics
from tests.shared.metric_lint import problems


def test_requests_are_counted_by_verb_and_status() -> None:
    requests = Requests()
    for verb, status in (("list", 200), ("watch", 410), ("list", 200), ("create", 0)):
        requests = add_request(requests, verb, status)
    assert (
        requests.counts == {"list 200": 2, "watch 410": 1, "create 0": 1} and requests.total() == 4
    )


def test_request_counts_are_differences_since_the_last_call() -> None:
    before = add_wait(add_request(Requests(), "list", 200), 0.5)
    after = add_wait(add_request(add_request(before, "get", 404), "get", 404), 0.25)
    assert requests_since(before, after) == Requests(counts={"get 404": 2}, waited_s=0.25)
    assert requests_since(after, after) == Requests()


def test_request_metrics_have_verb_and_status() -> None:
    requests = add_wait(
        add_request(add_request(add_request(Requests(), "list", 200), "list", 200), "watch", 0), 1.5
    )
    asked, waiting = request_measures(requests)

    assert asked.series == {("list", "200"): 2, ("watch", "0"): 1}
    assert waiting.series == {(): 1.5}
    assert problems(format_metrics([asked, waiting])) == []


COUNTS, CHANCES = st.integers(1, 10_000), st.floats(0, 1, exclude_max=True)


@given(COUNTS, CHANCES)
def test_a_backoff_is_between_half_and_all_of_its_exponential_value(
    count: int, chance: float
) -> None:
    whole = min(15.0, 0.5 * 2 ** min(count - 1, 40))
    assert whole / 2 <= backoff_s(count, 0.5, 15.0, chance) <= whole


def test_jitter_spreads_clients_that_failed_together() -> None:
    chance = random.Random(1)
    assert len({backoff_s(3, 0.5, 15.0, chance.random()) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("status", "said", "seconds"),
    [
        (429, "7", 7),
        (503, "1", 1),
        (429, None, 0),
        (429, "soon", 0),
        (429, "-1", 0),
        (409, "7", 0),
        (429, "9" * 9, 300),
    ],
)
def test_retry_after_is_read_from_an_answer(status: int, said: str | None, seconds: float) -> None:
    assert retry_after_s(status, said) == seconds <= LONGEST_HOLD_S


# ------------------------------------------------------------ the gate


class Arrivals:
    """Requests through a gate; each is a while on its way to the server, and back."""

    def __init__(self, rate: float, burst: int, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        self.gate, self.at = RateLimiter(rate, burst, self.chance.random), list[float]()

    async def one(self) -> None:
        async with self.gate.request_slot():
            await asyncio.sleep(self.chance.random() * 0.02)
            self.at.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self.chance.random() * 0.02)

    async def many(self, count: int) -> None:
        await asyncio.gather(*(self.one() for _ in range(count)))

    def most_in(self, seconds: float) -> int:
        return max(sum(begin <= at < begin + seconds for at in self.at) for begin in self.at)


@pytest.mark.parametrize(("rate", "burst"), [(100.0, 10), (100.0, 100), (50.0, 20), (200.0, 7)])
async def test_the_rate_limit_holds_at_the_server_for_any_latency(rate: float, burst: int) -> None:
    arrivals = Arrivals(rate, burst)
    await arrivals.many(120)
    assert arrivals.most_in(1.0) <= most_in_a_second(rate, burst) == burst * math.ceil(rate / burst)
    assert arrivals.most_in(burst / rate - 0.001) <= burst


async def test_a_burst_is_not_delayed() -> None:
    async with asyncio.timeout(60):
        await Arrivals(0.001, 10).many(10)  # a slot comes back after 10,000 s


async def test_requests_pause_for_retry_after_and_resume_spread_out() -> None:
    apart_s = [await apart_behind_silence_s(seed) for seed in range(3)]
    assert max(apart_s) > 0.05, (
        "a machine that stands still brings them together now and then, and not each time"
    )


async def apart_behind_silence_s(seed: int) -> float:
    arrivals = Arrivals(50.0, 10, seed)
    until_s = asyncio.get_running_loop().time() + 0.3
    arrivals.gate.pause(0.3)
    arrivals.gate.pause(0.1)  # who wants less does not end it
    await arrivals.many(10)
    assert min(arrivals.at) >= until_s
    return max(arrivals.at) - min(arrivals.at)


async def test_a_cancelled_request_releases_its_slot() -> None:
    arrivals = Arrivals(100.0, 1)
    arrivals.gate.pause(60.0)
    waiting = asyncio.create_task(arrivals.one())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    arrivals.gate.open_s = 0.0
    await asyncio.wait_for(arrivals.one(), 60)
