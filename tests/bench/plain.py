"""Parameter-server training as in TensorFlow's own guide: one iterator per worker, scheduled steps.

    python -m tests.bench.plain FOLDER PROGRAM ROLE INDEX

The cluster is in `FOLDER/cluster.json`. The chief appends a line `<time> <examples applied>` to
`FOLDER/progress` twice a second, from the optimizer's count on the ps. It does not account for
examples, and cannot hand over. Before, it writes the seconds of its preparation to
`FOLDER/prepared`: from the start of its process until the imports are done, the connection, the
model, and the first step. The role `alone` is a loop in one process, without a cluster.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

BATCH = 256
STEPS_A_JOIN = 200
REPORT_S = 0.5


def lead(folder: Path, cluster: dict[str, list[str]], program: Any) -> None:
    import tensorflow as tf

    imported_s = time.time()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    connected_s = time.time()
    with strategy.scope():
        update, optimizer = _make_update(program)
    built_s = time.time()

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> None:
        strategy.run(update, args=(next(iterator),))

    iterator = iter(coordinator.create_per_worker_dataset(lambda: _batches(program)))
    coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    parts = {
        "import_s": imported_s - psutil.Process().create_time(),
        "connect_s": connected_s - imported_s,
        "build_s": built_s - connected_s,
        "first_step_s": time.time() - built_s,
    }
    (folder / "prepared").write_text(json.dumps(parts))
    _start_reports(folder, optimizer)
    while True:
        for _ in range(STEPS_A_JOIN):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()


def train_alone(folder: Path, program: Any) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    update, optimizer = _make_update(program)

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> None:
        update(next(iterator))

    iterator = iter(_batches(program))
    _start_reports(folder, optimizer)
    while True:
        step(iterator)


def _make_update(program: Any) -> tuple[Any, Any]:
    """Return the function that applies a batch, and its optimizer."""
    import tensorflow as tf

    model, optimizer = program.model(), program.optimizer()
    optimizer.build(model.trainable_variables)

    def update(batch: Any) -> None:
        inputs, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(program.loss(labels, model(inputs, training=True)))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    return update, optimizer


def _batches(program: Any) -> Any:
    """Return an endless dataset of batches, from `whole()` if the program has it."""
    import tensorflow as tf

    make = getattr(program, "whole", None)
    whole = make() if make else program.dataset(0, program.examples()).repeat()
    return whole.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _start_reports(folder: Path, optimizer: Any) -> None:
    count = optimizer.iterations
    threading.Thread(target=_report, args=(folder / "progress", count), daemon=True).start()


def _report(path: Path, count: Any) -> None:
    with path.open("a", buffering=1) as file:
        while True:
            time.sleep(REPORT_S)
            done = int(count.numpy())
            file.write(f"{time.time()} {done * BATCH}\n")


def main() -> None:
    from services.trainer import program as programs
    from tests.bench.handwritten import stand

    folder, program, role, index = sys.argv[1:]
    cluster = json.loads((Path(folder) / "cluster.json").read_text())
    module = programs.load(Path(program), programs.program_digest(Path(program).read_bytes()))
    if role == "alone":
        train_alone(Path(folder), module)
    elif role == "chief":
        lead(Path(folder), cluster, module)
    else:
        stand(cluster, role, int(index), module)


if __name__ == "__main__":
    main()
