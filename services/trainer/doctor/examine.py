"""A program is tried in this process, by the functions that a job's tasks try it with. For `weir
doctor`. Edge.

    python -m services.trainer.doctor.examine FD ASKED

Its import, its examples, its model on parameter servers, two updates, its evaluation: chief, ps and
a worker stand in this one process, which tells over FD what it sees (`examined.py`). It ends with
its reader.

What `examine.py` looks at: examples, variables, the traced step. Edge, as it knows
TensorFlow.
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

from services.trainer.doctor.observations import (
    Asked,
    Examined,
    Held,
    Shape,
    first_starts,
    is_ordered,
    looked_at,
    reads_at_once,
    starts,
)
from services.trainer.protocol import Failed
from services.trainer.worker import failure_cause
from services.trainer.worker.watchdog import Watchdog
from shared.runtime import process

GIB = 1 << 30
PAIR, MOST = 5, 1024  # examples of which it is seen whether the loss compares each with each
READS = 3  # of a batch, of which the fastest counts: other processes want the cores, too


class Examiner:
    """Tries one program, and tells after each step what is known by then."""

    def __init__(self, asked: Asked, handle: int) -> None:
        self.asked = asked
        self._handle = handle
        self.seen = Examined()
        self.dog = Watchdog(asked.program, asked.limit_s, asked.limit_s)

    def tell(self, **more: Any) -> None:
        self.seen = msgspec.structs.replace(self.seen, **more)
        os.write(self._handle, msgspec.json.encode(self.seen) + b"\n")

    def run(self) -> None:
        """All steps; what breaks one is told in its author's words, and is the last thing that is
        told.
        """
        self.dog.start(self._handle, self._stuck)
        try:
            self._steps()
        except BaseException as error:
            self.tell(failed=failure_cause.told(error, self.asked.program))
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

        _ = (
            tf.keras,
            tf.distribute.ParameterServerStrategy,
        )  # loaded late by TensorFlow, and not by the program
        before = resident()
        began = time.monotonic()
        path = Path(self.asked.program)
        with self.dog.limited("its import"):
            module = program.load(path, program.digest_of(path.read_bytes()))
        self.tell(
            loaded_s=time.monotonic() - began,
            loaded_gib=max(resident() - before, 0) / GIB,
        )
        with self.dog.limited("examples()"):
            self.tell(examples=program.examples(module))
        return module

    def _sample(self, module: ModuleType) -> None:
        count = self.seen.examples or 0
        size = reads_at_once(self.asked, count)
        together = dict[int, str]()
        alone = dict[int, str]()
        infinite = list[int]()
        for start in starts(count, size):
            batch, chosen = self._read(module, start, start + size), looked_at(start, size)
            together |= {number: digest(batch, number - start) for number in chosen}
            infinite += [number for number in chosen if not finite(batch, number - start)]
        for number in reversed(sorted(together)):
            alone[number] = digest(self._read(module, number, number + 1), 0)
        read_s = min(self._seconds_to_read(module, size) for _ in range(READS))
        self.tell(
            together=together, alone=alone, infinite=tuple(sorted(set(infinite))), read_s=read_s
        )
        if self.asked.ps:
            self.tell(ordered=self._has_order(module, first_starts(count, size), size))
            self.tell(
                ordered=self.seen.ordered or self._has_order(module, starts(count, size), size)
            )

    def _has_order(self, module: ModuleType, where: Iterable[int], size: int) -> bool:
        """Whether the labels of the batches that begin there come in an order."""
        from services.trainer.worker import program_data

        found: list[float] = []
        for start in where:
            with self.dog.limited(f"dataset({start}, {start + size})"):
                _, labels = program_data.first(module, start, start + size)
            chosen = class_labels(labels)
            if chosen is None:
                return False
            found += chosen
        return is_ordered(found)

    def _seconds_to_read(self, module: ModuleType, size: int) -> float:
        began = time.monotonic()
        self._read(module, 0, size)
        return time.monotonic() - began

    def _read(self, module: ModuleType, start: int, stop: int) -> list[Any]:
        from services.trainer.worker import program_data

        with self.dog.limited(f"dataset({start}, {stop})"):
            return program_data.read(module, start, stop)

    # ------------------------------------------------------------ model and updates

    def _train(self, module: ModuleType) -> None:
        from services.trainer.worker import optimizers, program_data, scaling, training_step

        strategy, coordinator, self.standing = _cluster(self.asked.ps)
        program_data.serve(module, self.dog)
        vars(module)["model"] = named_anew(module.model)
        with self.dog.limited("model() or optimizer()"):
            built = training_step.build(module, strategy, self.asked.ps)
        slots = sum(bytes_of(variable) for variable in built.optimizer.variables)
        scheduled = None in optimizers.program_rates(built.optimizer)
        self.tell(variables=tuple(held(built.model)), slots=slots, scheduled=scheduled)
        self._compare(module, built.model)
        unlearnt = noting_unlearnt(built.optimizer)
        with self.dog.limited(
            "dataset(0, 1), or a step through the model and loss(), while it is traced,"
        ):
            batches = optimizers.accumulated_batches(built.optimizer)
            several = scaling.has_several(batches, self.asked.batch, self.asked.device_batch_max)
            traced = training_step.traced(module, strategy, built, several).get_concrete_function()
        whole = read_whole(traced, built.model)
        self.tell(variables=tuple(held(built.model, unlearnt, whole)))
        with self.dog.limited("a step through the model and loss()"):
            self._update(coordinator, traced, built.model)

    def _compare(self, module: ModuleType, model: Any) -> None:
        """With a batch as the job has it; of a very large one with a part, for the square of it may
        be made.
        """
        size = min(reads_at_once(self.asked, self.seen.examples or 0), MOST)
        if size < PAIR:
            return
        with self.dog.limited("model or loss()"):
            labels, outputs = answered(module, model, size)
            both = map(shapes, (labels, outputs))
            self.tell(
                **dict(zip(("labels", "outputs"), both, strict=True)),
                span=span(outputs),
            )
            self.tell(lossy=compared(module.loss, labels, outputs, size))
            self.tell(mixed=mixed(module.loss, labels, outputs))

    def _update(self, coordinator: Any, traced: Any, model: Any) -> None:
        """Two, for the first is slower."""
        from services.trainer.worker import training_step
        from services.trainer.worker.lanes import fetched
        from services.trainer.worker.scaling import split_passes

        size = min(self.asked.batch, self.seen.examples or 0)
        where = training_step.arguments(split_passes([(0, size)], self.asked.device_batch_max))
        loss = fetched(coordinator.schedule(traced, args=where))
        began = time.monotonic()
        again = fetched(coordinator.schedule(traced, args=where))
        took_s = time.monotonic() - began
        finite = math.isfinite(loss + again) and all(map(all_finite, model.trainable_variables))
        self.tell(update_s=took_s, loss=loss if math.isfinite(loss) else None, finite=finite)

    def _evaluate(self, module: ModuleType) -> None:
        from services.trainer.program import has
        from services.trainer.worker import program_data

        program_data.tried(module, self.dog)
        self.tell(evaluated=has(module, "evaluation"))


# ---------------------------------------------------------------- the cluster in this process


def _cluster(ps: int) -> tuple[Any, Any, Any]:
    """A chief's strategy over so many ps and one worker, its coordinator, and what is to be kept
    meanwhile.
    """
    import tensorflow as tf

    from services.trainer.pod.children import Ports
    from services.trainer.worker import child
    from services.trainer.worker.chief import connect

    held = {
        role: [Ports("0,0") for _ in range(count)]
        for role, count in (("chief", 1), ("ps", ps), ("worker", 1))
    }
    cluster = {
        role: [f"127.0.0.1:{each.numbers[0]}" for each in ports] for role, ports in held.items()
    }
    servers = [
        child.serve(cluster, role, i, 2, 1)
        for role in ("ps", "worker")
        for i in range(len(cluster[role]))
    ]
    strategy = connect(cluster)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy), (held, servers)


def main() -> None:
    process.die_with_parent()
    Examiner(msgspec.json.decode(sys.argv[2], type=Asked), int(sys.argv[1])).run()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's servers know no other end


FEW = 5  # examples
ALIKE, APART = 1e-4, 1e-2  # shares of a loss: so near is the same, and further than so much another


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def digest(batch: Iterable[Any], row: int) -> str:
    """Of one example: types, shapes and bytes of all its parts."""
    found = hashlib.sha256()
    for part in batch:
        value = part[row]
        text = repr(value) if part.dtype == object else value.tobytes().hex()
        found.update(f"{part.dtype} {part.shape[1:]} {text};".encode())
    return found.hexdigest()[:16]


def finite(batch: Iterable[Any], row: int) -> bool:
    import numpy as np

    return all(np.isfinite(part[row]).all() for part in batch if part.dtype.kind == "f")


def class_labels(labels: Any) -> list[float] | None:
    """A number for each example of a batch: its label, or the place of the one in a one-hot label;
    None if it has more than that.
    """
    import numpy as np
    import tensorflow as tf

    parts = tf.nest.flatten(labels)
    if len(parts) != 1 or not (
        parts[0].dtype.is_integer or parts[0].dtype.is_floating or parts[0].dtype.is_bool
    ):
        return None
    values = parts[0].numpy().astype("float64").reshape(len(parts[0]), -1)
    if values.shape[1] == 1:
        return list(values[:, 0].tolist())
    one_hot = ((values == 0) | (values == 1)).all() and (values.sum(axis=1) == 1).all()
    return [float(place) for place in np.argmax(values, axis=1)] if one_hot else None


def bytes_of(variable: Any) -> int:
    import tensorflow as tf

    return int(math.prod(variable.shape)) * int(tf.as_dtype(variable.dtype).size or 8)


def held(model: Any, unlearnt: Iterable[str] = (), whole: Iterable[str] = ()) -> Iterator[Held]:
    trained = {id(variable) for variable in model.trainable_variables}
    for each in model.variables:
        yield Held(
            name=each.path,
            shape=tuple(each.shape),
            bytes=bytes_of(each),
            learns=each.path not in set(unlearnt) if id(each) in trained else None,
            whole=each.path in set(whole),
        )


def named_anew(maker: Callable[[], Any]) -> Callable[[], Any]:
    """The same, but names of layers count from the beginning each time: as the program's author
    knows them.
    """
    from keras.src.utils import naming

    def made() -> Any:
        naming.reset_uids()
        return maker()

    return made


def noting_unlearnt(optimizer: Any) -> list[str]:
    """Names of the variables whose gradient is missing when the optimizer is next given them."""
    names: list[str] = []
    apply = optimizer.apply_gradients

    def asked(pairs: Iterable[tuple[Any, Any]]) -> Any:
        given = list(pairs)
        names.extend(variable.path for gradient, variable in given if gradient is None)
        return apply(given)

    optimizer.apply_gradients = asked
    return names


def answered(module: ModuleType, model: Any, size: int) -> tuple[Any, Any]:
    """A batch's labels, and the model's outputs for it."""
    from services.trainer.worker import program_data

    inputs, labels = program_data.first(module, 0, size)
    return labels, model(inputs, training=False)


def shapes(parts: Any) -> tuple[Shape, ...]:
    import tensorflow as tf

    return tuple(tuple(part.shape) for part in tf.nest.flatten(parts))


def span(outputs: Any) -> tuple[float, float] | None:
    """The least and the most of them; None where there are several, or a number that is none."""
    import tensorflow as tf

    parts = tf.nest.flatten(outputs)
    ends = [
        float(reduce(tf.cast(parts[0], tf.float32))) for reduce in (tf.reduce_min, tf.reduce_max)
    ]
    return (ends[0], ends[1]) if len(parts) == 1 and all(map(math.isfinite, ends)) else None


def compared(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any, size: int) -> Shape:
    """The shape of a loss that has a number for each pair of examples: a silent broadcast."""
    import tensorflow as tf

    found = tuple(tf.convert_to_tensor(loss(labels, outputs)).shape)
    each = (size, size)
    return (
        found
        if found[:2] == each and all(shape[:2] != each for shape in shapes((labels, outputs)))
        else ()
    )


def mixed(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> bool:
    """Whether a mean hides such a broadcast: where one of the two lacks an axis of one, the loss of
    a batch is not the mean of its examples' losses, and with the axis it is.
    """
    import tensorflow as tf

    if (
        len(tf.nest.flatten((labels, outputs))) != 2
        or abs(labels.shape.rank - outputs.shape.rank) != 1
    ):
        return False
    labels, outputs = labels[:FEW], outputs[:FEW]
    alone = [_mean(loss, labels[n : n + 1], outputs[n : n + 1]) for n in range(len(labels))]
    wider = (
        (tf.expand_dims(labels, -1), outputs)
        if labels.shape.rank < outputs.shape.rank
        else (labels, outputs[..., None])
    )
    whole = _mean(loss, labels, outputs)
    mended = _mean(loss, *wider)
    each = sum(alone) / len(alone)
    return math.isclose(mended, each, rel_tol=ALIKE) and not math.isclose(
        whole, each, rel_tol=APART
    )


def _mean(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> float:
    """No number, where it does not take them."""
    import tensorflow as tf

    try:
        return float(tf.reduce_mean(loss(labels, outputs)))
    except (ValueError, TypeError, tf.errors.OpError):
        return math.nan


def read_whole(traced: Any, model: Any) -> list[str]:
    """Names of the variables that a step reads as a whole only to look some rows up.

    A variable that is read is copied to whoever reads; `tf.gather(variable, rows)` with a
    TensorFlow variable looks the rows up on its ps. Keras 3's `Embedding` does the first (Keras
    3.15): to TensorFlow its variable is a plain tensor.
    """
    variables = {id(variable.value.handle): variable.path for variable in model.variables}
    inside = {inner.name: variables.get(id(outer)) for outer, inner in traced.graph.captures}
    reads = (
        op
        for op in traced.graph.get_operations()
        if op.type == "ReadVariableOp" and _feeds_a_lookup(op)
    )
    return [name for op in reads if (name := inside.get(op.inputs[0].name))]


def _feeds_a_lookup(op: Any) -> bool:
    """Whether the first input of a `GatherV2` comes from here, perhaps through nothing but
    copies.
    """
    for output in op.outputs:
        for user in output.consumers():
            if user.type == "GatherV2" and user.inputs[0].name == output.name:
                return True
            if user.type == "Identity" and _feeds_a_lookup(user):
                return True
    return False


def all_finite(variable: Any) -> bool:
    import tensorflow as tf

    return bool(tf.reduce_all(tf.math.is_finite(variable.value)))


if __name__ == "__main__":
    main()
