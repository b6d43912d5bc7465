"""The demo where no terminal is: what it tells while it runs."""

from __future__ import annotations

import asyncio
from typing import cast

from services.cli import demo
from services.cli.trial import Trial
from shared.messages import Message, ProgressReported
from shared.tasks import end


class Watched:
    """A trial of which only what is heard and said is given."""

    def __init__(self) -> None:
        self.saying, self.heard = "", list[Message]()

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.heard if isinstance(message, kind)]


def report(samples: int) -> ProgressReported:
    return ProgressReported(
        job="digits",
        uid=1,
        generation=1,
        epoch=0,
        step=samples // 10,
        samples=samples,
        total_samples=200,
        samples_per_second=50.0,
    )


async def test_each_turn_of_the_story_is_a_line_and_so_is_how_far_it_is() -> None:
    watched, lines = Watched(), list[str]()
    telling = asyncio.ensure_future(demo.tell(cast(Trial, watched), lines.append, every_s=0.0))

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(lines) < count:
                await asyncio.sleep(0.01)

    watched.saying = "the job was submitted"
    await until(1)
    watched.heard.append(report(50))
    await until(2)
    await asyncio.sleep(3 * demo.REDRAW_S)
    watched.saying = "the strangers left"
    await until(3)
    await end(telling)

    assert lines == [
        "the job was submitted",
        "25.0 % done, 0 epochs complete, 50 samples/s",
        "the strangers left",
    ], "what is not new is not said again"
