"""Choose and trace the lanes of a job whose workers make all updates together."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from services.trainer.worker import exactness
from services.trainer.worker.exact_batches import ExactLanes
from services.trainer.worker.file_batches import FileBatchLanes
from services.trainer.worker.global_batch import GlobalBatchLanes, Updater
from services.trainer.worker.input_pipeline import DataPlan
from services.trainer.worker.lanes import Lanes, Worker
from services.trainer.worker.part_exchange import Part
from services.trainer.worker.rehearsal import explained_errors, rehearse_updates, stage_portion
from services.trainer.worker.remote_worker import (
    WorkerFailure,
    trace_part_workers,
    trace_workers,
)
from services.trainer.worker.shard_ledger import Shard
from services.trainer.worker.training_step import BuiltModel, WholeBatchNeeded
from services.trainer.worker.update_plan import divide_examples
from services.trainer.worker.whole_updates import (
    WholeUpdateExactLanes,
    WholeUpdateFileLanes,
    WholeUpdateLanes,
    WholeUpdates,
)

REHEARSED = -1
"""The number of the update before training."""


class TracedLanes(NamedTuple):
    """Lanes, and a function that makes an update on every worker."""

    lanes: Lanes
    rehearse: Callable[[], None]


def trace_lanes(
    program: ModuleType,
    strategy: Any,
    built: BuiltModel,
    plan: DataPlan,
    spec: Any,
    workers: int,
    inbox: queue.Queue[Any],
    is_exact: bool = False,
) -> TracedLanes:
    """Trace the functions of workers that make all updates together. One worker makes whole updates.

    `spec`: the structure of a batch; `is_exact`: the updates have the same parts whatever the
    number of workers.
    """
    together: type[GlobalBatchLanes] = GlobalBatchLanes
    in_turn: type[WholeUpdates] = WholeUpdateLanes
    part_count = None
    if is_exact:
        exactness.check_program(program)
        together, in_turn = ExactLanes, WholeUpdateExactLanes
        part_count = plan.part_count
    elif plan.reads_files:
        together, in_turn = FileBatchLanes, WholeUpdateFileLanes
    parts = program, strategy, built, plan, spec, workers
    if workers == 1 and together is GlobalBatchLanes:
        return _trace_whole_updates(in_turn, parts, inbox)
    try:
        remote, updater = trace_part_workers(*parts, part_count)
    except WholeBatchNeeded:
        return _trace_whole_updates(in_turn, parts, inbox)
    if is_exact:
        exactness.check_step(program, remote[0].step.graph)
    lanes = together(remote, plan, inbox, updater)
    return TracedLanes(lanes, partial(rehearse_parts, remote, plan, updater, part_count or workers))


def _trace_whole_updates(
    kind: type[WholeUpdates], parts: tuple[Any, ...], inbox: queue.Queue[Any]
) -> TracedLanes:
    """Trace the functions of workers that make whole updates in turn.

    `parts`: the arguments of `trace_workers`.
    """
    program, _, _, plan, *_ = parts
    workers = trace_workers(*parts)
    if kind is WholeUpdateExactLanes:
        exactness.check_step(program, workers[0].step.graph)
    return TracedLanes(kind(workers, plan, inbox), partial(rehearse_updates, workers, plan))


def rehearse_parts(
    workers: Sequence[Worker], plan: DataPlan, updater: Updater, part_count: int
) -> None:
    """Let all workers make an update of the first examples together. `part_count`: of an update."""
    shares = divide_examples(part_count, [1.0] * len(workers))
    firsts = list(itertools.accumulate(shares, initial=0))
    size = min(-(-plan.update // part_count), plan.most or plan.update, plan.order.examples)

    def compute(place: int) -> int:
        """Compute a worker's parts. Return the number of passes; 0 if the first file has no example."""
        worker, share = workers[place], shares[place]
        portion = plan.portion((Shard(0, size),) * share, batch=size)
        with explained_errors(worker, portion):
            sizes = stage_portion(worker, portion)
            if sizes:
                rows = tuple(sizes) if plan.reads_files else ()
                passes = len(sizes) // share
                for number in range(firsts[place], firsts[place] + share):
                    worker.compute_part(Part(REHEARSED, number, passes, size * part_count, rows))
                worker.take_losses()
            return len(sizes)

    used = [place for place, share in enumerate(shares) if share]
    with ThreadPoolExecutor(len(used)) as threads:
        passes = list(threads.map(compute, used))
    if all(passes):
        try:
            updater.apply(REHEARSED, part_count, size * part_count)
        except WorkerFailure as failure:
            raise failure.cause from failure
