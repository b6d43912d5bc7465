"""The ledger of a chief's checkpoints, while batches are out that will not come home."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from services.trainer import build, optimizers, shards
from services.trainer.chief import Chief
from services.trainer.lanes import Lanes
from services.trainer.orders import Assignment, Begin, Drain, GoOn, SaveNow
from services.trainer.saving import Draft
from services.trainer.shards import Shard
from services.trainer.watchdog import Watchdog
from shared.messages import Resources
from tests.trainer.builders import request

BATCH = 16


class Applied:
    def fetch(self) -> float:
        return 1.0


class Lost:
    """A batch whose worker is dead."""

    def __init__(self, waited_for: threading.Semaphore) -> None:
        self.waited_for = waited_for

    def fetch(self) -> float:
        self.waited_for.release()
        threading.Event().wait()
        raise AssertionError


class Workers:
    """They apply two batches, then the last of them dies. `starts`: the first example of each
    batch, in order.
    """

    def __init__(self) -> None:
        self.numbers, self.lost, self.starts = (
            itertools.count(),
            threading.Semaphore(0),
            list[int](),
        )

    def schedule(self, fn: object, args: Any = None) -> Applied | Lost:
        self.starts.append(int(args[0][0]))
        return Applied() if next(self.numbers) < 2 else Lost(self.lost)


class Saves:
    """Takes what is to be saved, and writes nothing. `due_s`: when the next is due."""

    def __init__(self) -> None:
        self.drafts, self.due_s = list[Draft](), float("inf")

    def begin(self, *_: object) -> None:
        pass

    def settle(self) -> None:
        pass

    def now(self, draft: Draft, *_: object) -> bool:
        self.drafts.append(draft)
        return True

    aside = now


def chief_of(folder: Path, workers: Workers, saves: Saves, lanes: int) -> Chief:
    """A chief that is prepared, with workers and saves that are played."""
    program: Any = SimpleNamespace(
        model=lambda: keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    assigned = Assignment(
        generation=1,
        role="chief",
        index=0,
        cluster={"chief": ["h:1"], "ps": ["h:2"], "worker": ["h:3"]},
        request=request(),
        batch=BATCH,
        program="digits.py",
        checkpoint_dir=str(folder),
        resources=Resources(cpu=1, memory_gib=1),
        warms_up=False,
    )
    inbox = queue.Queue[Any]()
    made: Any = Chief(assigned, program, lambda _: None, inbox, Watchdog("digits.py", 60.0, 60.0))
    made.built = build.build(program, tf.distribute.get_strategy(), 1)
    made.rates = optimizers.program_rates(made.built.optimizer)
    made.checkpoint, made.saving = None, saves
    made.ledger = shards.fresh(64, 3)
    made.lanes = Lanes(workers, None, BATCH, lanes, inbox)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("occasion", ["drain", "save now", "the interval"])
def test_a_checkpoint_while_batches_are_given_out_holds_them_as_to_do(
    tmp_path: Path, occasion: str
) -> None:
    workers, saves = Workers(), Saves()
    chief = chief_of(tmp_path, workers, saves, lanes=2)
    chief.begin(Begin())
    for _ in range(2):
        assert workers.lost.acquire(timeout=10), "two batches are not out"
    chief.lanes.deserted = lambda: True
    if occasion == "the interval":
        saves.due_s = time.monotonic()
    for word in {"drain": [Drain(successor=2), GoOn()], "save now": [SaveNow()]}.get(occasion, []):
        chief.inbox.put(word)

    with pytest.raises(tf.errors.UnavailableError):  # nobody can go on
        chief.train()

    (draft,) = saves.drafts
    assert draft.ledger.given == (), "a batch that nobody will apply is no longer to do"
    assert draft.ledger.applied == 2 * BATCH == BATCH * draft.step
    assert sum(shard.size for shard in draft.ledger.todo) == 3 * 64 - 2 * BATCH


def test_a_restored_ledger_that_holds_batches_as_given_out_has_them_done_first(
    tmp_path: Path,
) -> None:
    workers = Workers()
    chief = chief_of(tmp_path, workers, Saves(), lanes=1)
    chief.ledger, shard = shards.take(chief.ledger, BATCH)
    assert shard == Shard(0, BATCH)

    chief.begin(Begin())

    assert workers.starts[0] == 0, "the batch that was out is left out"
    chief.lanes.deserted = lambda: True
    chief.lanes.drain()
