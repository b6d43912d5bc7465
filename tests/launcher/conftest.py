"""Each test with a `world` runs twice.

The launcher lives on, or is killed and rebuilt at every step.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launcher.world import World


@pytest.fixture(params=[False, True], ids=["lives-on", "killed-at-every-step"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    told = World(restarts=request.param)
    yield told
    told.settle()
