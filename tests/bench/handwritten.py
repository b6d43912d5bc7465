"""Stop, restart, restore: a parameter-server job without Weir, the baseline for Weir's own restart.

    python -m tests.bench.handwritten FOLDER PROGRAM ROLE INDEX

Each task is a parent process that runs a child and, when `FOLDER/saved-<n>` appears, starts it
again for round n + 1. The cluster of round n is in `FOLDER/cluster-<n>.json`; the chief stops when
`FOLDER/stop-<n>` exists. It writes the times of its last and its first applied update to
`FOLDER/last-<n>` and `FOLDER/first-<n>`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

LOOK_S = 0.02
LANES_PER_WORKER = 2
BATCH = 256
TOKEN = "handwritten_batch"


def parent(folder: Path, words: list[str]) -> None:
    number = 0
    while True:
        if not _member(folder, number, words):
            _wait(folder / f"saved-{number}")
        else:
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.handwritten", *words, str(number)]
            )
            _wait(folder / f"saved-{number}")
            child.kill()
            child.wait()
        number += 1


def _member(folder: Path, number: int, words: list[str]) -> bool:
    _wait(folder / f"cluster-{number}.json")
    cluster = json.loads((folder / f"cluster-{number}.json").read_text())
    return int(words[3]) < len(cluster[words[2]])


def _wait(path: Path) -> None:
    while not path.exists():
        time.sleep(LOOK_S)


def write(path: Path, text: str) -> None:
    """Write a file atomically, so that readers never find a part of it."""
    half = path.with_suffix(".half")
    half.write_text(text)
    os.replace(half, path)


def stand(cluster: dict[str, list[str]], role: str, index: int, program: Any) -> None:
    import tensorflow as tf

    if role == "worker":
        serve_batches(program)
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=role, task_index=index).join()


_served: list[Any] = []


def serve_batches(program: Any) -> None:
    """Let training steps read batches with a Python function in this process."""
    from tensorflow.python.ops import script_ops

    from services.trainer.worker import program_data

    def read_batch(start: Any, stop: Any) -> list[Any]:
        return program_data.read_batch(program, int(start), int(stop))

    _served.append(read_batch)  # TensorFlow's table holds weak references
    script_ops._py_funcs._funcs[TOKEN] = read_batch


def traced_batch(spec: Any, start: Any, stop: Any) -> Any:
    import tensorflow as tf

    leaves = tf.nest.flatten(spec)
    values = tf.raw_ops.PyFunc(
        input=[start, stop], token=TOKEN, Tout=[leaf.dtype for leaf in leaves]
    )
    for value, leaf in zip(values, leaves, strict=True):
        value.set_shape([None, *leaf.shape])
    return tf.nest.pack_sequence_as(spec, values)


def lead(folder: Path, number: int, cluster: dict[str, list[str]], program: Any) -> None:
    """Build the model, restore it, train until the stop file exists, and save."""
    import tensorflow as tf

    from services.trainer.worker import program_data

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = program.model(), program.optimizer()
        optimizer.build(model.trainable_variables)
    spec = program_data.example_spec(program)

    def update(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(program.loss(labels, model(inputs, training=True)))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)] * 2)  # type: ignore[untyped-decorator]
    def step(start: Any, stop: Any) -> Any:
        return strategy.run(update, args=traced_batch(spec, start, stop))

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    if number:
        checkpoint.read(str(folder / f"ckpt-{number - 1}")).assert_existing_objects_matched()
    _loop(folder, number, coordinator, step, LANES_PER_WORKER * len(cluster["worker"]))
    checkpoint.write(str(folder / f"ckpt-{number}"))
    write(folder / f"saved-{number}", "")


def _loop(folder: Path, number: int, coordinator: Any, step: Any, lanes: int) -> None:
    import tensorflow as tf

    lock, stop = threading.Lock(), folder / f"stop-{number}"
    state = {"next": 0, "last": 0.0}

    def lane() -> None:
        while not stop.exists():
            with lock:
                start, state["next"] = state["next"], (state["next"] + BATCH) % 1_000_000
            coordinator.schedule(
                step, args=(tf.constant(start, tf.int64), tf.constant(start + BATCH, tf.int64))
            ).fetch()
            with lock:
                if not state["last"]:
                    write(folder / f"first-{number}", repr(time.time()))
                state["last"] = time.time()

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write(folder / f"last-{number}", repr(state["last"]))


def main() -> None:
    folder, program, role, index, *number = sys.argv[1:]
    if not number:
        parent(Path(folder), [folder, program, role, index])
        return
    from services.trainer import program as programs

    cluster = json.loads((Path(folder) / f"cluster-{number[0]}.json").read_text())
    module = programs.load(Path(program), programs.program_digest(Path(program).read_bytes()))
    if role == "chief":
        lead(Path(folder), int(number[0]), cluster, module)
    else:
        stand(cluster, role, int(index), module)


if __name__ == "__main__":
    main()
