"""Rehearse updates before training begins, so that TensorFlow has built all that they need.

One update is enough: with two, the pauses of hand-overs are no shorter (10 M and 100 M parameters).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from services.trainer.worker.input_pipeline import DataPlan, Portion, StagedPass
from services.trainer.worker.lanes import Worker
from services.trainer.worker.remote_worker import WorkerFailure
from services.trainer.worker.shard_ledger import Shard


def update_once(worker: Worker, plan: DataPlan) -> float | None:
    """Let a worker make an update of the first batch; return its loss.

    Return None if the first file has no example, or if the update was dropped. Raise the error of
    the program or of the worker.
    """
    portion = plan.portion((Shard(0, min(plan.batch, plan.order.examples)),))
    with explained_errors(worker, portion):
        passes = stage_portion(worker, portion)
        if not passes:
            return None
        worker.update(len(passes), 1)
        losses = worker.take_losses()
        return losses[-1].loss if losses else None


def stage_portion(worker: Worker, portion: Portion) -> list[int]:
    """Let a worker stage a portion to its end; return the number of examples of each pass."""
    staged: list[StagedPass] = []
    worker.push(portion)
    while not staged or staged[-1].size:
        staged += worker.fetch(1, 0)
    return [each.size for each in staged if each.size]


@contextlib.contextmanager
def explained_errors(worker: Worker, portion: Portion) -> Iterator[None]:
    """Raise the error of the program, with its line, or of the worker."""
    try:
        yield
    except WorkerFailure as failure:
        raise failure.cause from failure
    except tf.errors.OpError:
        worker.explain(portion)
        raise


def rehearse_updates(workers: Sequence[Worker], plan: DataPlan) -> None:
    """Let every worker make an update of the first batch, in parallel with the other workers."""
    with ThreadPoolExecutor(len(workers)) as threads:
        list(threads.map(lambda worker: update_once(worker, plan), workers))
