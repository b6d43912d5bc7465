"""Real TensorFlow children without pods: a chief, a ps and a worker, forked by one fork server.

cradle = Cradle(fork_server, tmp_path)
failed = await cradle.fails(program_text)

Only the bus and the supervisors are missing, so a whole short job takes a second or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.trainer.pod.children import Child, ForkServer
from services.trainer.program import program_digest
from services.trainer.protocol import (
    Assignment,
    Begin,
    ChildEvent,
    CommittedCheckpoints,
    Failed,
    Prepared,
    Resumed,
    Saved,
    SaveNow,
)
from shared.messages import Program, Resources, Role
from shared.runtime.process import free_port
from tests.trainer.builders import request

WITHIN_S = 180.0
BATCH = 16
ROLES: tuple[Role, ...] = ("ps", "worker", "chief")
PLAIN = """
import keras
import numpy as np
import tensorflow as tf


def model():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(1e-3)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return 64


def dataset(start, stop):
    ones = np.ones((stop - start, 4), "float32")
    return tf.data.Dataset.from_tensor_slices((ones, ones[:, :1]))
"""


class Cradle:
    """The children of one job in generation 1.

    `said` has the events of each role; two workers share a list. `asked` has fields of the job's
    request. If `saves_early` is set, the chief also saves soon after its first update.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        asked: Mapping[str, Any] | None = None,
        workers: int = 1,
        **assigned: Any,
    ) -> None:
        self.fork_server, self.folder, self.assigned = (
            fork_server,
            folder,
            {"first": True, **assigned},
        )
        self.asked, self.tasks = asked or {}, [*ROLES, *["worker"] * (workers - 1)]
        self.said: dict[Role, list[ChildEvent]] = {role: [] for role in ROLES}
        self.ended: dict[Role, asyncio.Event] = {role: asyncio.Event() for role in ROLES}
        self.children: dict[Role, list[Child]] = {role: [] for role in ROLES}
        self.begun = self.saves_early = False

    async def fails(self, program: str) -> Failed:
        """Run a program. Return the first failure of the chief, or else of the worker."""
        await self.lives(program)
        found = [
            word
            for role in ("chief", "worker")
            for word in self.said[role]
            if isinstance(word, Failed)
        ]
        assert found, self.said
        return found[0]

    async def lives(self, program: str) -> None:
        """Run a program until the chief or a worker ends."""
        path = self._written(program)
        cluster = {
            role: [f"127.0.0.1:{free_port()}" for task in self.tasks if task == role]
            for role in ROLES
        }
        listening = [
            asyncio.create_task(self._bear(role, self.tasks[:at].count(role), path, cluster))
            for at, role in enumerate(self.tasks)
        ]
        ends = [asyncio.create_task(self.ended[role].wait()) for role in ("chief", "worker")]
        try:
            async with asyncio.timeout(WITHIN_S):
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._each(Child.end)
            for each in ends:
                each.cancel()
            await asyncio.gather(*listening, *ends, return_exceptions=True)

    def saved(self) -> list[Saved]:
        """Return the checkpoints in order. None of them is pruned."""
        return [word for word in self.said["chief"] if isinstance(word, Saved)]

    def _each(self, act: Callable[[Child], None]) -> None:
        for children in self.children.values():
            for child in children:
                act(child)

    def _written(self, program: str) -> Path:
        path = self.folder / "net.py"
        path.write_text(program)
        return path

    async def _bear(
        self, role: Role, index: int, program: Path, cluster: dict[str, list[str]]
    ) -> None:
        named = Program(name=program.name, digest=program_digest(program.read_bytes()))
        assignment = Assignment(
            generation=1,
            role=role,
            index=index,
            cluster=cluster,
            request=request(**{"epochs": 1, "program": named, **self.asked}),
            batch=BATCH,
            program=str(program),
            checkpoint_dir=str(self.folder / "checkpoints"),
            resources=Resources(cpu=1.0),
            warms_up=False,
            **self.assigned,
        )
        hear, end = self._hearing(role)
        child = Child(assignment, self.fork_server, hear, end)
        self.children[role].append(child)
        await child.listen()

    def _hearing(self, role: Role) -> Any:
        def on_word(word: ChildEvent) -> None:
            self.said[role].append(word)
            (chief,) = self.children["chief"] or (None,)
            if role != "chief" or chief is None:
                return
            if isinstance(word, Saved):
                chief.send(CommittedCheckpoints(paths=tuple(saved.path for saved in self.saved())))
            if isinstance(word, Resumed) and self.saves_early:
                chief.send(SaveNow())
            if isinstance(word, Prepared):
                self.begun = True
                self._each(lambda child: child.send(Begin()))

        def on_end() -> None:
            self.ended[role].set()

        return on_word, on_end
