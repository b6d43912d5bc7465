"""Print which examples reach the updates, with every form of data.

All tasks run in this process. The output is JSON: for each case how often each example was applied
in two epochs, as counted on the ps; the numbers in the order of their application (one worker); and
the calls of `dataset`.
"""

import itertools
import json
import queue
import sys
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from services.trainer.worker import (
    example_source,
    input_pipeline,
    program_data,
    remote_worker,
    training_step,
)
from services.trainer.worker.lanes import Lanes
from services.trainer.worker.trace_lanes import trace_lanes
from services.trainer.worker.watchdog import Watchdog
from shared.messages import Shuffle
from tests.trainer.programs import counting, file_data
from tests.trainer.programs.servers import start_servers

EXAMPLES, BATCH, EPOCHS, WORKERS = counting.EXAMPLES, 16, 2, 2
strategy, servers = start_servers(1, WORKERS)
calls = []
table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
table.insert(tf.range(EXAMPLES, dtype=tf.int64), tf.range(EXAMPLES, dtype=tf.int64))


def read(numbers):
    calls.append(len(numbers))
    features = counting._inputs[numbers]
    parts = (np.asarray(numbers, np.int64), features), features.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices(parts)


def generated(numbers):
    def elements():
        for number in numbers:
            features = counting._inputs[number]
            yield (number, features), features.sum(keepdims=True)

    calls.append(len(numbers))
    spec = ((tf.TensorSpec([], tf.int64), tf.TensorSpec([4])), tf.TensorSpec([1]))
    return tf.data.Dataset.from_generator(elements, output_signature=spec)


def looked_up(numbers):
    return read(numbers).map(lambda x, y: ((tf.ensure_shape(table.lookup(x[0]), []), x[1]), y))


def by_range(make):
    return lambda start, stop: make(np.arange(start, stop))


def by_numbers(make):
    return lambda numbers: make(numbers)


def numbered(make):
    return {"examples": counting.examples, "dataset": make}


FAILING = "calls that fail for a moment"
PASSES = {"most": 5, "accumulated": 3}
CASES = {
    "range": (numbered(by_range(read)), Shuffle(on=False), {}),
    "shuffled range": (numbered(by_range(read)), Shuffle(seed=3), {}),
    "numbers": (numbered(by_numbers(read)), Shuffle(on=False), {}),
    "shuffled numbers": (numbered(by_numbers(read)), Shuffle(seed=3), {}),
    "passes": (numbered(by_numbers(read)), Shuffle(seed=3), PASSES),
    FAILING: (numbered(by_numbers(read)), Shuffle(seed=3), {}),
    "generator": (numbered(by_numbers(generated)), Shuffle(seed=3), {}),
    "table": (numbered(by_numbers(looked_up)), Shuffle(seed=3), {}),
}
for kind, functions in file_data.CASES.items():
    CASES[kind] = (functions, Shuffle(seed=3, window=30), {})
for name, functions in file_data.batched_cases().items():
    CASES[name] = (functions, Shuffle(seed=3), {})
CASES["files in order"] = (file_data.CASES["text"], Shuffle(on=False), {})
CASES["passes of files"] = (file_data.CASES["tfrecord"], Shuffle(seed=3), PASSES)

REGISTERED = "a registered file system"
if REGISTERED in sys.argv:
    CASES[REGISTERED] = (file_data.veiled_program(), Shuffle(seed=3, window=30), {})
CASES |= {
    f"{name}, together": (functions, shuffle, {**fields, "together": True})
    for name, (functions, shuffle, fields) in CASES.items()
}
if len(sys.argv) > 1:
    CASES = {name: CASES[name] for name in sys.argv[1:]}


def failing(call, at):
    """Return the call of a worker, but with number `at` failing for a moment after it is executed."""
    numbers = itertools.count(1)

    def call_or_fail(*arguments):
        number = next(numbers)
        if number != at:
            return call(*arguments)
        call(*arguments)
        cause = tf.errors.UnavailableError(None, None, "Connection reset by peer")
        raise remote_worker.WorkerFailure(cause, lost=False)

    return call_or_fail


def lanes_apart(program, strategy, built, plan, spec, workers, inbox):
    """Return lanes of workers that make updates of their own."""
    remote = remote_worker.trace_workers(program, strategy, built, plan, spec, workers)
    return Lanes(remote, plan, inbox)


def train(functions, shuffle, fields, workers, fails=False):
    """Train to the end. `together`: the workers make each update together."""
    program = SimpleNamespace(
        __file__=__file__,
        model=counting.model,
        optimizer=counting.optimizer,
        loss=counting.loss,
        **functions,
    )
    input_pipeline.serve_portions(program, Watchdog(__file__, 60.0, 60.0))
    built = training_step.build_model(program, strategy, 1)
    source = example_source.source_of(program)
    together = fields.get("together", False)
    chosen = {name: value for name, value in fields.items() if name != "together"}
    plan = input_pipeline.DataPlan(source.order(shuffle), BATCH, **chosen)
    spec = program_data.element_spec(program, built.model)
    parts = program, strategy, built, plan, spec, workers
    inbox = queue.Queue()
    lanes = trace_lanes(*parts, inbox).lanes if together else lanes_apart(*parts, inbox)
    if fails:
        for worker in [lane.worker for lane in lanes._lanes]:
            worker.fetch = failing(worker.fetch, 4)
    calls.clear()
    lanes.start(source.new_ledger(EPOCHS), 0)
    while (word := inbox.get(timeout=120)) != "finished":
        if isinstance(word, Exception):
            raise word
    lanes.drain()
    (counts,) = (v.numpy() for v in built.model.variables if "counts" in v.path)
    return {
        "counts": sorted(set(counts.tolist())),
        "applied": int(built.counters.applied),
        "steps": lanes.steps,
        "calls": len(calls),
    }


print(
    json.dumps({name: train(*case, WORKERS, name == FAILING) for name, case in CASES.items()}),
    flush=True,
)
sys.stdout.flush()
