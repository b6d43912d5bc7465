"""Jobs side by side, a number a job."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator.models.fitting import fit
from services.allocator.policies.contract import JobSeen, Size
from services.allocator.policies.weir.auction import Stairs
from services.allocator.policies.weir.field import Columns, Field
from services.allocator.policies.weir.hull import Config
from services.allocator.policies.weir.stand import Stand
from shared.messages import Resources
from tests.allocator.builders import EVEN, request

STEPS = tuple(Config(1, n, 32, n, 0.0, 0.0, n / 8, 10.0 * n) for n in (1, 2, 4))
"""An eighth of the cluster a worker, and ten examples/s."""


def stand(name: str, left_s: float | None, size: Size | None = None, **fields: Any) -> Stand:
    job = JobSeen(key=f"default.{name}", request=request(name), sizes=EVEN, submitted_s=5.0, size=size, **fields)
    speed, cost = (10.0 * size.workers, size.workers / 8) if size else (0.0, 0.0)
    return Stand(
        job, STEPS, 80.0, speed, cost, left_s, 0, (0.0, 0.0, 0.0), 2.0, fit([]), Resources(cpu=8), Resources(cpu=8)
    )


STANDS = (
    stand("waits", 3.0),
    stand("new", None),
    stand("paused", 3.0, Size(1, 2), since_s=100.0, pause_s=4.0),
    stand("never-paused", 3.0, Size(1, 1), since_s=100.0),
)


def test_how_long_each_takes_is_in_seconds_of_its_first_and_last_step() -> None:
    found = Columns(STANDS, Stairs([s.steps for s in STANDS]))
    assert found.shortest_s.tolist() == [6.0, 0.0, 6.0, 6.0], "240 examples at 40 a second"
    assert found.alone_s.tolist() == [26.0, 2.0, 24.0, 24.0], "at 10 a second, and the start of who waits"
    assert found.start_s.tolist() == [0.25] * 4 and found.unknown.tolist() == [False, True, False, False]


def test_who_paused_grows_when_that_is_little_beside_what_it_gains() -> None:
    settles = Field(STANDS).settles_s
    assert settles.tolist() == [-math.inf, -math.inf, pytest.approx(100.0 + 4.0 / (2 * 0.5)), -math.inf]
    field = Field(STANDS)
    early, late = field.offers(103.0)[2], field.offers(105.0)[2]
    assert np.isneginf(early[2]) and not np.isneginf(late[2]) and not np.isneginf(early[:2]).any()


def test_growth_leaves_something_while_jobs_come() -> None:
    leaves = Field([replace(s, spare=(1.0, 0.0, 0.0)) for s in STANDS]).leaves
    assert leaves(5.0)[:, :, 0].tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1]], "beyond what each has"
    assert not leaves(math.inf).any(), "nobody has come for long"
