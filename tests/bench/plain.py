"""Parameter-server training as TensorFlow's own guide writes it: an iterator a worker, steps
scheduled by the hundred.

    python -m tests.bench.plain FOLDER PROGRAM ROLE INDEX

The cluster is in `FOLDER/cluster.json`. The chief appends a line `<time> <examples applied>` to
`FOLDER/progress` twice a second, from the optimizer's count on the ps. Nothing is accounted for,
nothing can be handed over.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

BATCH = 256
STEPS_A_JOIN = 200
REPORT_S = 0.5


def lead(folder: Path, cluster: dict[str, list[str]], program: Any) -> None:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = program.model(), program.optimizer()
        optimizer.build(model.trainable_variables)

    def update(batch: Any) -> None:
        inputs, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(program.loss(labels, model(inputs, training=True)))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> None:
        strategy.run(update, args=(next(iterator),))

    def examples() -> Any:
        whole = program.dataset(0, program.examples())
        return whole.repeat().batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    iterator = iter(coordinator.create_per_worker_dataset(examples))
    threading.Thread(
        target=_report, args=(folder / "progress", optimizer.iterations), daemon=True
    ).start()
    while True:
        for _ in range(STEPS_A_JOIN):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()


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
    if role == "chief":
        lead(Path(folder), cluster, module)
    else:
        stand(cluster, role, int(index), module)


if __name__ == "__main__":
    main()
