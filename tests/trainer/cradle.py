"""Real children of TensorFlow without pods around them: a chief, a ps and a worker, forked of one nursery.

cradle = Cradle(nursery, tmp_path)
failed = await cradle.fails(program_text)

Nothing but the bus and the supervisors is left out, so a program lives a whole short life within a second or two.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from services.trainer.children import Child, Nursery
from services.trainer.orders import Assignment, Begin, Failed, Kept, Prepared, Saved, Word
from services.trainer.program import digest_of
from shared.messages import Program, Resources, Role
from shared.ports import free_port
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
    """One job's children, generation 1. `said` is what each has said, by role."""

    def __init__(self, nursery: Nursery, folder: Path, **assigned: Any) -> None:
        self.nursery, self.folder, self.assigned = nursery, folder, {"first": True, **assigned}
        self.said: dict[Role, list[Word]] = {role: [] for role in ROLES}
        self.ended: dict[Role, asyncio.Event] = {role: asyncio.Event() for role in ROLES}
        self.children: dict[Role, Child] = {}
        self.begun = False

    async def fails(self, program: str) -> Failed:
        """What the chief, or else the worker, says at last of a program."""
        await self.lives(program)
        found = [word for role in ("chief", "worker") for word in self.said[role] if isinstance(word, Failed)]
        assert found, self.said
        return found[0]

    async def lives(self, program: str) -> None:
        """Until the chief or the worker ends."""
        path = self._written(program)
        cluster = {role: [f"127.0.0.1:{free_port()}"] for role in ROLES}
        listening = [asyncio.create_task(self._bear(role, path, cluster)) for role in ROLES]
        ends = [asyncio.create_task(self.ended[role].wait()) for role in ("chief", "worker")]
        try:
            async with asyncio.timeout(WITHIN_S):
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for child in self.children.values():
                child.end()
            for each in ends:
                each.cancel()
            await asyncio.gather(*listening, *ends, return_exceptions=True)

    def _written(self, program: str) -> Path:
        path = self.folder / "net.py"
        path.write_text(program)
        return path

    async def _bear(self, role: Role, program: Path, cluster: dict[str, list[str]]) -> None:
        named = Program(name=program.name, digest=digest_of(program.read_bytes()))
        assignment = Assignment(
            generation=1,
            role=role,
            index=0,
            cluster=cluster,
            request=request(epochs=1, program=named),
            batch=BATCH,
            program=str(program),
            checkpoint_dir=str(self.folder / "checkpoints"),
            resources=Resources(cpu=1.0),
            warms_up=False,
            **self.assigned,
        )
        hear, end = self._hearing(role)
        self.children[role] = Child(assignment, self.nursery, hear, end)
        await self.children[role].listen()

    def _hearing(self, role: Role) -> Any:
        async def on_word(word: Word) -> None:
            self.said[role].append(word)
            if role == "chief" and isinstance(word, Saved):
                self.children[role].tell(Kept(paths=(word.path,)))
            if role == "chief" and isinstance(word, Prepared):
                self.begun = True
                for child in self.children.values():
                    child.tell(Begin())

        async def on_end() -> None:
            self.ended[role].set()

        return on_word, on_end
