"""How often the API may be asked, and how long to wait after trouble. Pure.

The limit. There are `burst` slots. A request takes one, and gives it back `burst / rate` seconds
after the answer began. So two requests of one slot reach the server at least that far apart,
however long each was on its way, and

    in any burst / rate seconds at most `burst` requests arrive,
    in any one second at most  burst * ceil(rate / burst)           (`most_in_a_second`)

which is less than a token bucket of the same two figures lets through (rate + burst), and needs no
clock of the server.

The wait after the n-th trouble in a row, with a chance in [0, 1) ("equal jitter": Brooker,
Exponential Backoff And Jitter, 2015), so that those who were hurt together do not come back
together:

    wait = min(longest, first * 2^(n - 1)) * (1 + chance) / 2       (`wait_s`)
"""

from __future__ import annotations

import math

DOUBLINGS = 32  # beyond which any wait is the longest
LONGEST_HOLD_S = 300.0  # of a server that asks for more, we ask again then
TOO_MANY, SERVER_TROUBLE = 429, 500


def wait_s(count: int, first_s: float, longest_s: float, chance: float) -> float:
    return min(longest_s, first_s * 2.0 ** min(count - 1, DOUBLINGS)) * (1 + chance) / 2


def most_in_a_second(rate: float, burst: int) -> int:
    return burst * math.ceil(rate / burst)


def hold_s(status: int, retry_after: str | None) -> float:
    """How long an answer asks us to be silent: its Retry-After in whole seconds, of a 429 or of a
    server in trouble.
    """
    asks = status == TOO_MANY or status >= SERVER_TROUBLE
    return (
        min(float(retry_after), LONGEST_HOLD_S)
        if asks and retry_after and retry_after.isdecimal()
        else 0.0
    )
