"""What pods use, told to their chief: over the bus' plain side, because only the newest value
matters. Edge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from nats.aio.msg import Msg

from services.trainer.settings import Settings
from services.trainer.usage import Use, limit_gib, sample_of, spare
from shared.auth.permissions import USAGE
from shared.bus.bus import Bus
from shared.messages import ClusterSpecPublished, TaskUsage, task_name

logger = structlog.get_logger()


class Meter:
    """Every pod `measure`s and tells; a chief also `collect`s. `usage`: the newest of each task, by
    its name.

    `child`: the process of the generation that runs in this pod.
    """

    def __init__(
        self, bus: Bus, settings: Settings, child: Callable[[], int | None] = lambda: None
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.child = child
        self.subject = f"{USAGE}.{settings.namespace}.{settings.job}.{settings.uid}"
        self.usage: dict[str, TaskUsage] = {}
        self.complained = False

    async def measure(self) -> None:
        use, name = Use(), task_name(self.settings.role, self.settings.serial)
        while True:
            await asyncio.sleep(self.settings.usage_s)
            look = await asyncio.to_thread(use.look, self.settings.usage_s)
            limit = await asyncio.to_thread(limit_gib, self.settings.memory_gib)
            left = await asyncio.to_thread(spare, limit, self.child())
            rounded = {key: round(value, 3) for key, value in msgspec.structs.asdict(look).items()}
            sample = TaskUsage(task=name, **rounded, spare_gib=left)
            if self.bus.client.is_connected:  # what is old when the bus is back is of no use
                await self.bus.client.publish(self.subject, msgspec.json.encode(sample))

    async def collect(self) -> None:
        await self.bus.client.subscribe(self.subject, cb=self.on_usage)

    def of(self, spec: ClusterSpecPublished) -> tuple[TaskUsage, ...]:
        """What the tasks of a generation use: the last word of a task that is gone says nothing of
        it.
        """
        names = {task.pod.removeprefix(f"{spec.job}-") for task in spec.tasks}
        return tuple(sample for name, sample in self.usage.items() if name in names)

    async def on_usage(self, raw: Msg) -> None:
        """Plain messages only: a server's answers, which one may have sent here, have headers or
        other subjects.
        """
        plain = raw.subject == self.subject and not raw.headers
        sample = sample_of(raw.data) if plain else None
        if sample is not None:
            self.usage[sample.task] = sample
        elif not self.complained:
            self.complained = True
            logger.warning(
                "OddUsage", subject=raw.subject, body=raw.data[:200].decode("utf-8", "replace")
            )
