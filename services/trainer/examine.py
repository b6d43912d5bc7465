"""A program is tried in this process, by the functions that a job's tasks try it with. For `weir doctor`. Edge.

    python -m services.trainer.examine FD ASKED

Its import, its examples, its model on parameter servers, two updates, its evaluation: chief, ps and a worker stand in
this one process, which tells over FD what it sees (`examined.py`). It ends with its reader.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil

from services.trainer import cause
from services.trainer.examined import Asked, Examined, Held, looked_at, starts
from services.trainer.orders import Failed
from services.trainer.watchdog import Watchdog
from shared import lifeline

GIB = 1 << 30
READS = 3  # of a batch, of which the fastest counts: other processes want the cores, too
PAIR = 5  # examples; a loss of so many times so many numbers has compared each with each


class Examiner:
    """Tries one program, and tells after each step what is known by then."""

    def __init__(self, asked: Asked, handle: int) -> None:
        self.asked, self._handle, self.seen = asked, handle, Examined()
        self.dog = Watchdog(asked.program, asked.limit_s, asked.limit_s)

    def tell(self, **more: Any) -> None:
        self.seen = msgspec.structs.replace(self.seen, **more)
        os.write(self._handle, msgspec.json.encode(self.seen) + b"\n")

    def run(self) -> None:
        """All steps; what breaks one is told in its author's words, and is the last thing that is told."""
        self.dog.start(self._handle, self._stuck)
        try:
            self._steps()
        except BaseException as error:
            self.tell(failed=cause.told(error, self.asked.program))
        else:
            self.tell(done=True)

    def _stuck(self, failed: Failed) -> None:
        self.tell(failed=failed.cause)
        os._exit(1)

    def _steps(self) -> None:
        module = self._load()
        self._sample(module)
        if self.asked.ps:
            self._train(module)
            self._evaluate(module)

    # ------------------------------------------------------------ import and examples

    def _load(self) -> ModuleType:
        import tensorflow as tf

        from services.trainer import program

        _ = (tf.keras, tf.distribute.ParameterServerStrategy)  # loaded late by TensorFlow, and not by the program
        before, began, path = _resident(), time.monotonic(), Path(self.asked.program)
        with self.dog.limited("its import"):
            module = program.load(path, program.digest_of(path.read_bytes()))
        self.tell(loaded_s=time.monotonic() - began, loaded_gib=max(_resident() - before, 0) / GIB)
        with self.dog.limited("examples()"):
            self.tell(examples=program.examples(module))
        return module

    def _sample(self, module: ModuleType) -> None:
        count = self.seen.examples or 0
        size = min(self.asked.batch, count)
        together, alone, infinite = dict[int, str](), dict[int, str](), list[int]()
        for start in starts(count, size):
            batch, chosen = self._read(module, start, start + size), looked_at(start, size)
            together |= {number: _digest(batch, number - start) for number in chosen}
            infinite += [number for number in chosen if not _finite(batch, number - start)]
        for number in reversed(sorted(together)):
            alone[number] = _digest(self._read(module, number, number + 1), 0)
        read_s = min(self._seconds_to_read(module, size) for _ in range(READS))
        self.tell(together=together, alone=alone, infinite=tuple(sorted(set(infinite))), read_s=read_s)

    def _seconds_to_read(self, module: ModuleType, size: int) -> float:
        began = time.monotonic()
        self._read(module, 0, size)
        return time.monotonic() - began

    def _read(self, module: ModuleType, start: int, stop: int) -> list[Any]:
        from services.trainer import feed

        with self.dog.limited(f"dataset({start}, {stop})"):
            return feed.read(module, start, stop)

    # ------------------------------------------------------------ model and updates

    def _train(self, module: ModuleType) -> None:
        import keras

        from services.trainer import build, feed, step

        strategy, coordinator, self.standing = _cluster(self.asked.ps)
        feed.serve(module, self.dog)
        module.model = _named_anew(module.model)
        with self.dog.limited("model() or optimizer()"):
            built = build.build(module, strategy, self.asked.ps)
        slots = sum(_bytes(variable) for variable in built.optimizer.variables)
        scheduled = not isinstance(built.optimizer.learning_rate, keras.Variable)
        self.tell(variables=tuple(_held(built.model)), slots=slots, scheduled=scheduled)
        with self.dog.limited("model or loss()"):
            self.tell(lossy=_compared(module, built.model))
        unlearnt = _noting_unlearnt(built.optimizer)
        with self.dog.limited("dataset(0, 1), or a step through the model and loss(), while it is traced,"):
            traced = step.traced(module, strategy, built).get_concrete_function()
        self.tell(variables=tuple(_held(built.model, unlearnt, _read_whole(traced, built.model))))
        with self.dog.limited("a step through the model and loss()"):
            self._update(coordinator, traced, built.model)

    def _update(self, coordinator: Any, traced: Any, model: Any) -> None:
        """Two, for the first is slower."""
        import tensorflow as tf

        from services.trainer.lanes import fetched

        size = min(self.asked.batch, self.seen.examples or 0)
        where = (tf.constant(0, tf.int64), tf.constant(size, tf.int64))
        loss = fetched(coordinator.schedule(traced, args=where))
        began = time.monotonic()
        again = fetched(coordinator.schedule(traced, args=where))
        took_s = time.monotonic() - began
        finite = math.isfinite(loss) and math.isfinite(again) and all(map(_all_finite, model.trainable_variables))
        self.tell(update_s=took_s, loss=loss if math.isfinite(loss) else None, finite=finite)

    def _evaluate(self, module: ModuleType) -> None:
        from services.trainer import evaluate
        from services.trainer.program import has

        evaluate.tried(module, self.dog)
        self.tell(evaluated=has(module, "evaluation"))


# ---------------------------------------------------------------- the cluster in this process


def _cluster(ps: int) -> tuple[Any, Any, Any]:
    """A chief's strategy over so many ps and one worker, its coordinator, and what is to be kept meanwhile."""
    import tensorflow as tf

    from services.trainer import lean
    from services.trainer.chief import connect
    from services.trainer.ports import Ports

    held = {role: [Ports("0,0") for _ in range(count)] for role, count in (("chief", 1), ("ps", ps), ("worker", 1))}
    cluster = {role: [f"127.0.0.1:{each.numbers[0]}" for each in ports] for role, ports in held.items()}
    servers = [lean.serve(cluster, role, i, 2, 1) for role in ("ps", "worker") for i in range(len(cluster[role]))]
    strategy = connect(cluster)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), (held, servers)


# ---------------------------------------------------------------- what is looked at


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _digest(batch: Iterable[Any], row: int) -> str:
    """Of one example: types, shapes and bytes of all its parts."""
    digest = hashlib.sha256()
    for part in batch:
        value = part[row]
        text = repr(value) if part.dtype == object else value.tobytes().hex()
        digest.update(f"{part.dtype} {part.shape[1:]} {text};".encode())
    return digest.hexdigest()[:16]


def _finite(batch: Iterable[Any], row: int) -> bool:
    import numpy as np

    return all(np.isfinite(part[row]).all() for part in batch if part.dtype.kind == "f")


def _bytes(variable: Any) -> int:
    import tensorflow as tf

    return math.prod(variable.shape) * int(tf.as_dtype(variable.dtype).size or 8)


def _held(model: Any, unlearnt: Iterable[str] = (), whole: Iterable[str] = ()) -> Iterator[Held]:
    trained = {id(variable) for variable in model.trainable_variables}
    for each in model.variables:
        yield Held(
            name=each.path,
            shape=tuple(each.shape),
            bytes=_bytes(each),
            learns=each.path not in set(unlearnt) if id(each) in trained else None,
            whole=each.path in set(whole),
        )


def _named_anew(maker: Callable[[], Any]) -> Callable[[], Any]:
    """The same, but names of layers count from the beginning each time: as the program's author knows them."""
    from keras.src.utils import naming

    def made() -> Any:
        naming.reset_uids()
        return maker()

    return made


def _noting_unlearnt(optimizer: Any) -> list[str]:
    """Names of the variables whose gradient is missing when the optimizer is next given them."""
    names: list[str] = []
    apply = optimizer.apply_gradients

    def asked(pairs: Iterable[tuple[Any, Any]]) -> Any:
        given = list(pairs)
        names.extend(variable.path for gradient, variable in given if gradient is None)
        return apply(given)

    optimizer.apply_gradients = asked
    return names


def _compared(module: ModuleType, model: Any) -> tuple[str, ...]:
    """Shapes of labels, outputs and loss, where the loss has a number for each pair of examples: a silent broadcast."""
    import tensorflow as tf

    from services.trainer import feed
    from services.trainer.program import examples

    if examples(module) < PAIR:
        return ()
    inputs, labels = feed.first(module, 0, PAIR)
    outputs = model(inputs, training=False)
    found = tf.convert_to_tensor(module.loss(labels, outputs)).shape
    parts = [part.shape for part in tf.nest.flatten((labels, outputs))]
    if tuple(found[:2]) != (PAIR, PAIR) or any(tuple(shape[:2]) == (PAIR, PAIR) for shape in parts):
        return ()
    return tuple(str(shape) for shape in (*parts, found))


def _read_whole(traced: Any, model: Any) -> list[str]:
    """Names of the variables that a step reads as a whole only to look some rows up.

    A variable that is read is copied to whoever reads; `tf.gather(variable, rows)` with a TensorFlow variable looks the
    rows up on its ps. Keras 3's `Embedding` does the first (Keras 3.15): to TensorFlow its variable is a plain tensor.
    """
    variables = {id(variable.value.handle): variable.path for variable in model.variables}
    inside = {inner.name: variables.get(id(outer)) for outer, inner in traced.graph.captures}
    reads = (op for op in traced.graph.get_operations() if op.type == "ReadVariableOp" and _feeds_a_lookup(op))
    return [name for op in reads if (name := inside.get(op.inputs[0].name))]


def _feeds_a_lookup(op: Any) -> bool:
    """Whether the first input of a `GatherV2` comes from here, perhaps through nothing but copies."""
    for output in op.outputs:
        for user in output.consumers():
            if user.type == "GatherV2" and user.inputs[0].name == output.name:
                return True
            if user.type == "Identity" and _feeds_a_lookup(user):
                return True
    return False


def _all_finite(variable: Any) -> bool:
    import tensorflow as tf

    return bool(tf.reduce_all(tf.math.is_finite(variable.value)))


def main() -> None:
    lifeline.die_with_parent()
    Examiner(msgspec.json.decode(sys.argv[2], type=Asked), int(sys.argv[1])).run()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's servers know no other end


if __name__ == "__main__":
    main()
