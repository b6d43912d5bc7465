"""Try a program in this process, with the functions that a job's tasks use. For `weir doctor`.

    python -m services.trainer.doctor.examine FD REQUEST

It tries the import, the examples, the model on parameter servers, two updates and the evaluation.
With the consistency `global-batch` or `exact` it also makes an update in parts, as workers make
it together.
Chief, ps and worker run in this one process, which reports over FD (`observations.py`) and ends
with its reader.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil

from services.trainer.doctor.observations import (
    FIRST_BATCHES,
    ExamineRequest,
    Observations,
    Shape,
    VariableInfo,
    first_starts,
    is_ordered,
    read_size,
    sample_starts,
    sampled_examples,
)
from services.trainer.program import (
    BadProgram,
    example_count,
    program_digest,
    reads_files,
    stored_file,
)
from services.trainer.protocol import Failed
from services.trainer.worker import exactness, failure_cause
from services.trainer.worker.watchdog import Watchdog
from shared.messages import GIB, Program
from shared.runtime import process

PAIR, MOST = 5, 1024  # least and most examples to detect a loss that compares pairs
TIMED_READS = 3  # of a batch; the fastest counts, because other processes use the cores, too
FEW_EXAMPLES = 5
ALIKE, APART = (
    1e-4,
    1e-2,
)  # relative differences of losses: equal below the first, different above the second


class Examiner:
    """Tries one program and reports the observations after each step."""

    def __init__(self, asked: ExamineRequest, handle: int) -> None:
        self.asked = asked
        self._handle = handle
        self.seen = Observations()
        self.dog = Watchdog(asked.program, asked.limit_s, asked.limit_s)

    def report(self, **more: Any) -> None:
        self.seen = msgspec.structs.replace(self.seen, **more)
        os.write(self._handle, msgspec.json.encode(self.seen) + b"\n")

    def run(self) -> None:
        """Run all steps. A failure is described for the program's author and is the last report."""
        self.dog.start(self._handle, self._report_stuck)
        try:
            self._run_steps()
        except BaseException as error:
            self.report(failed=failure_cause.describe_failure(error, self.asked.program))
        else:
            self.report(done=True)

    def _report_stuck(self, failed: Failed) -> None:
        self.report(failed=failed.cause)
        os._exit(1)

    def _run_steps(self) -> None:
        module = self._load_program()
        self._sample_examples(module)
        if self.asked.ps:
            self._try_updates(module)
            self._try_evaluation(module)

    @property
    def _is_exact(self) -> bool:
        return self.asked.consistency == "exact"

    # ------------------------------------------------------------ import and examples

    def _load_program(self) -> ModuleType:
        from services.trainer.worker.child import import_tensorflow, load_program

        import_tensorflow()  # not part of the program's import
        from services.trainer.worker import step_resources

        if self._is_exact:
            exactness.enable_determinism()
            exactness.disable_graph_rewrites()
        step_resources.name_devices_of_chief()
        before = resident_bytes()
        began = time.monotonic()
        path, entry = Path(self.asked.program), self.asked.entry
        digest = program_digest(stored_file(path, entry).read_bytes())
        with self.dog.limit("its import"):
            asked = Program(name=path.name, digest=digest, entry=entry)
            module = load_program(path, asked, self.asked.params)
        self.report(
            loaded_s=time.monotonic() - began,
            loaded_gib=max(resident_bytes() - before, 0) / GIB,
        )
        if self._is_exact:
            exactness.check_program(module)
        if reads_files(module):
            self._count_files(module)
        else:
            with self.dog.limit("examples()"):
                self.report(examples=example_count(module))
        return module

    def _count_files(self, module: ModuleType) -> None:
        """Report the number of files and of the examples to try: the first of the first files."""
        from services.trainer.worker import file_source, program_data

        with self.dog.limit("files()"):
            files = file_source.FileList(module)
            expected = file_source.expected_examples(module)
        self.report(files=len(files.names), expected=expected)
        with self.dog.limit(program_data.first_call(module)):
            first = program_data.first_examples(module, FIRST_BATCHES * self.asked.batch)
            with program_data.locate_errors(first, module.read):
                count = sum(1 for _ in first)
        if not count:
            raise BadProgram(f"there is no example in {files.names[0]}", module.read)
        self.report(examples=count)

    def _sample_examples(self, module: ModuleType) -> None:
        from services.trainer.worker.program_data import example_digest

        count = self.seen.examples or 0
        size = read_size(self.asked, count)
        together = dict[int, str]()
        alone = dict[int, str]()
        infinite = list[int]()
        for start in sample_starts(count, size):
            batch = self._read_batch(module, start, start + size)
            for number in sampled_examples(start, size):
                together[number] = example_digest(batch, number - start)
                if not is_finite_example(batch, number - start):
                    infinite.append(number)
        for number in reversed(sorted(together)):
            alone[number] = example_digest(self._read_batch(module, number, number + 1), 0)
        read_s = min(self._seconds_to_read(module, size) for _ in range(TIMED_READS))
        self.report(
            together=together, alone=alone, infinite=tuple(sorted(set(infinite))), read_s=read_s
        )
        if self.asked.ps and not self.asked.shuffled:
            ordered = self._labels_are_ordered(module, first_starts(count, size), size)
            self.report(ordered=ordered)
            if not ordered:
                ordered = self._labels_are_ordered(module, sample_starts(count, size), size)
            self.report(ordered=ordered)

    def _labels_are_ordered(self, module: ModuleType, where: Iterable[int], size: int) -> bool:
        """Return whether the labels of the batches at these places are sorted or grouped."""
        from services.trainer.worker import program_data, step_loss

        found: list[float] = []
        for start in where:
            with self.dog.limit(self._reading_name(module, start, start + size)):
                batch = program_data.program_batch(module, start, start + size)
            chosen = class_labels(step_loss.split_batch(batch).labels)
            if chosen is None:
                return False
            found += chosen
        return is_ordered(found)

    def _seconds_to_read(self, module: ModuleType, size: int) -> float:
        began = time.monotonic()
        self._read_batch(module, 0, size)
        return time.monotonic() - began

    def _read_batch(self, module: ModuleType, start: int, stop: int) -> list[Any]:
        from services.trainer.worker import program_data

        with self.dog.limit(self._reading_name(module, start, stop)):
            return program_data.read_batch(module, start, stop)

    def _reading_name(self, module: ModuleType, start: int, stop: int) -> str:
        from services.trainer.worker import program_data

        if reads_files(module):
            return program_data.first_call(module)
        return f"dataset({start}, {stop})"

    # ------------------------------------------------------------ model and updates

    def _try_updates(self, module: ModuleType) -> None:
        from services.trainer.worker import (
            example_source,
            input_pipeline,
            optimizers,
            program_data,
            remote_worker,
            training_step,
        )

        strategy, self.standing = _start_cluster(self.asked.ps)
        input_pipeline.serve_portions(module, self.dog)
        vars(module)["model"] = with_fresh_layer_names(module.model)
        with self.dog.limit("model() or optimizer()"):
            built = training_step.build_model(module, strategy, self.asked.ps)
        used = optimizers.all_optimizers(built.optimizer)
        slots = sum(variable_bytes(variable) for each in used for variable in each.variables)
        scheduled = None in optimizers.program_rates(built.optimizer)
        self.report(
            variables=tuple(describe_variables(built)),
            slots=slots,
            scheduled=scheduled,
            combines_rows=row_combining_optimizer(built.optimizer),
            kind=built.kind,
        )
        if built.kind == "loss":
            self._check_loss_shapes(module, built.model)
        unlearnt = record_missing_gradients(used)
        with self.dog.limit(
            f"{program_data.first_call(module)}, or a step through the model and loss(), "
            "while it is traced,"
        ):
            plan = input_pipeline.DataPlan(
                example_source.source_of(module).order(None),
                min(self.asked.batch, self.seen.examples or 1),
                self.asked.device_batch_max,
                optimizers.accumulated_batches(built.optimizer),
            )
            spec = program_data.element_spec(module, built.model)
            (worker,) = remote_worker.trace_workers(module, strategy, built, plan, spec, 1)
        whole = variables_read_whole(worker.step, built.variables)
        self.report(variables=tuple(describe_variables(built, unlearnt, whole)))
        with self.dog.limit("a step through the model and loss()"):
            self._time_update(worker, plan, built.trainable_variables)
            if self.asked.consistency != "async":
                self._try_parts(worker, (module, strategy, built, plan, spec))

    def _try_parts(self, worker: Any, traced: tuple[Any, ...]) -> None:
        """Make an update in parts, or report why it cannot be made so.

        `worker`: makes whole updates; `traced`: the first arguments of `trace_part_workers`.
        """
        from services.trainer.worker import remote_worker, trace_lanes
        from services.trainer.worker.training_step import WholeBatchNeeded

        module, strategy, built, plan, spec = traced
        part_count = None
        if self._is_exact:
            plan = plan._replace(most=min(plan.most or plan.batch, plan.batch))
            part_count = plan.part_count
        try:
            workers, updater = remote_worker.trace_part_workers(
                module, strategy, built, plan, spec, 1, part_count
            )
        except WholeBatchNeeded as needed:
            if self._is_exact:
                exactness.check_step(module, worker.step.graph)
            self.report(whole_batch=str(needed))
            return
        if self._is_exact:
            exactness.check_step(module, workers[0].step.graph)
        trace_lanes.rehearse_parts(workers, plan, updater, part_count or 1)
        self.report(parts=True)

    def _check_loss_shapes(self, module: ModuleType, model: Any) -> None:
        """Compare the loss of a batch with its examples' losses. A very large batch is cut, because
        its square may be computed.
        """
        size = min(read_size(self.asked, self.seen.examples or 0), MOST)
        if size < PAIR:
            return
        with self.dog.limit("model or loss()"):
            labels, outputs = labels_and_outputs(module, model, size)
            both = map(tensor_shapes, (labels, outputs))
            self.report(
                **dict(zip(("labels", "outputs"), both, strict=True)),
                span=output_range(outputs),
            )
            self.report(lossy=pairwise_loss_shape(module.loss, labels, outputs, size))
            self.report(mixed=mean_hides_broadcast(module.loss, labels, outputs))

    def _time_update(self, worker: Any, plan: Any, weights: Sequence[Any]) -> None:
        """Make two updates, because the first is slower."""
        from services.trainer.worker.rehearsal import update_once

        loss = update_once(worker, plan) or math.nan
        began = time.monotonic()
        again = update_once(worker, plan) or math.nan
        took_s = time.monotonic() - began
        finite = math.isfinite(loss + again) and all(map(is_finite_variable, weights))
        self.report(update_s=took_s, loss=loss if math.isfinite(loss) else None, finite=finite)

    def _try_evaluation(self, module: ModuleType) -> None:
        from services.trainer.program import has_function
        from services.trainer.worker import evaluation

        evaluation.try_evaluation(module, self.dog)
        self.report(evaluated=has_function(module, "evaluation"))


# ---------------------------------------------------------------- the cluster in this process


def _start_cluster(ps: int) -> tuple[Any, Any]:
    """Return a strategy over `ps` ps and one worker, and the servers to keep alive."""
    from services.trainer.pod.children import Ports
    from services.trainer.worker import child
    from services.trainer.worker.chief import connect_cluster

    held: list[Ports] = []
    cluster: dict[str, list[str]] = {"chief": [], "ps": [], "worker": []}
    for role in ("chief", *["ps"] * ps, "worker"):
        ports = Ports("0,0")
        held.append(ports)
        cluster[role].append(f"127.0.0.1:{ports.numbers[0]}")
    servers, threads = [], child.thread_config(inter_op=2, intra_op=1)
    for role in ("ps", "worker"):
        for index in range(len(cluster[role])):
            servers.append(child.start_server(cluster, role, index, threads))
    strategy = connect_cluster(cluster)
    return strategy, (held, servers)


def main() -> None:
    process.die_with_parent()
    Examiner(msgspec.json.decode(sys.argv[2], type=ExamineRequest), int(sys.argv[1])).run()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's servers cannot be stopped


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def is_finite_example(batch: Iterable[Any], row: int) -> bool:
    import numpy as np

    values = [np.asarray(part[row]) for part in batch]
    return all(np.isfinite(value).all() for value in values if value.dtype.kind == "f")


def class_labels(labels: Any) -> list[float] | None:
    """Return a number for each example: its label, or the class of a one-hot label; None for other
    labels.
    """
    import numpy as np
    import tensorflow as tf

    parts = tf.nest.flatten(labels)
    if len(parts) != 1 or not isinstance(parts[0], tf.Tensor):
        return None
    if not (parts[0].dtype.is_integer or parts[0].dtype.is_floating or parts[0].dtype.is_bool):
        return None
    values = parts[0].numpy().astype("float64").reshape(len(parts[0]), -1)
    if values.shape[1] == 1:
        return list(values[:, 0].tolist())
    one_hot = ((values == 0) | (values == 1)).all() and (values.sum(axis=1) == 1).all()
    return list(np.argmax(values, axis=1).astype(float).tolist()) if one_hot else None


def variable_bytes(variable: Any) -> int:
    import tensorflow as tf

    return int(math.prod(variable.shape)) * int(tf.as_dtype(variable.dtype).size or 8)


def describe_variables(
    built: Any, unlearnt: Iterable[str] = (), whole: Iterable[str] = ()
) -> Iterator[VariableInfo]:
    from services.trainer.worker.sharded_table import ShardedTable

    trained = {id(variable) for variable in built.trainable_variables}
    for each in built.variables:
        yield VariableInfo(
            name=each.path,
            shape=tuple(each.shape),
            bytes=variable_bytes(each),
            learns=each.path not in set(unlearnt) if id(each) in trained else None,
            whole=each.path in set(whole),
            divided=isinstance(each, ShardedTable),
        )


def with_fresh_layer_names(maker: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that resets Keras' numbering of layer names and then calls `maker`.

    The names are then those that the author of the program knows.
    """
    from keras.src.utils import naming

    @wraps(maker)  # errors name the line of the program's own function
    def made() -> Any:
        naming.reset_uids()
        return maker()

    return made


def record_missing_gradients(used: Iterable[Any]) -> list[str]:
    """Return a list that receives the names of the variables without a gradient.

    They are added whenever one of these optimizers applies gradients.
    """
    names: list[str] = []
    for optimizer in used:
        optimizer.apply_gradients = partial(_record_missing, names, optimizer.apply_gradients)
    return names


def _record_missing(
    names: list[str], apply: Callable[[Any], Any], pairs: Iterable[tuple[Any, Any]]
) -> Any:
    given = list(pairs)
    names.extend(variable.path for gradient, variable in given if gradient is None)
    return apply(given)


def labels_and_outputs(module: ModuleType, model: Any, size: int) -> tuple[Any, Any]:
    """Return a batch's labels and the model's outputs for it."""
    from services.trainer.worker import program_data, step_loss

    example = step_loss.split_batch(program_data.first_batch(module, size))
    return example.labels, model(example.inputs, training=False)


def tensor_shapes(parts: Any) -> tuple[Shape, ...]:
    import tensorflow as tf

    return tuple(tuple(part.shape) for part in tf.nest.flatten(parts))


def output_range(outputs: Any) -> tuple[float, float] | None:
    """Return the least and the greatest output; None for several outputs.

    None also if one of the two is not finite.
    """
    import tensorflow as tf

    parts = tf.nest.flatten(outputs)
    if len(parts) != 1:
        return None
    values = tf.cast(parts[0], tf.float32)
    least, most = float(tf.reduce_min(values)), float(tf.reduce_max(values))
    return (least, most) if math.isfinite(least) and math.isfinite(most) else None


def pairwise_loss_shape(
    loss: Callable[[Any, Any], Any], labels: Any, outputs: Any, size: int
) -> Shape:
    """Return the shape of a loss with a number for each pair of examples; empty for other losses.

    Such a shape shows a silent broadcast.
    """
    import tensorflow as tf

    found = tuple(tf.convert_to_tensor(loss(labels, outputs)).shape)
    pairs = (size, size)
    given = [shape[:2] for shape in tensor_shapes((labels, outputs))]
    return found if found[:2] == pairs and pairs not in given else ()


def mean_hides_broadcast(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> bool:
    """Return whether the loss is the mean over pairs of examples, because of a silent broadcast.

    That is so if labels or outputs lack an axis of size 1, the loss of a batch is not the mean of
    its examples' losses, and it is that mean once the axis is added.
    """
    import tensorflow as tf

    if not (tf.is_tensor(labels) and tf.is_tensor(outputs)):
        return False
    if abs(labels.shape.rank - outputs.shape.rank) != 1:
        return False
    labels, outputs = labels[:FEW_EXAMPLES], outputs[:FEW_EXAMPLES]
    alone = [_mean_loss(loss, labels[n : n + 1], outputs[n : n + 1]) for n in range(len(labels))]
    mean_of_examples = sum(alone) / len(alone)
    of_batch = _mean_loss(loss, labels, outputs)
    if labels.shape.rank < outputs.shape.rank:
        with_axis = _mean_loss(loss, tf.expand_dims(labels, -1), outputs)
    else:
        with_axis = _mean_loss(loss, labels, outputs[..., None])
    if math.isclose(of_batch, mean_of_examples, rel_tol=APART):
        return False
    return math.isclose(with_axis, mean_of_examples, rel_tol=ALIKE)


def _mean_loss(loss: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> float:
    """Return the mean loss; NaN if the loss does not accept these arguments."""
    import tensorflow as tf

    try:
        return float(tf.reduce_mean(loss(labels, outputs)))
    except (ValueError, TypeError, tf.errors.OpError):
        return math.nan


def row_combining_optimizer(optimizer: Any) -> str:
    """Return the class of the first optimizer that may combine rows of a table, so that its tables
    stay whole; empty if there is none.
    """
    from services.trainer.worker import optimizers, row_updates

    for each in optimizers.optimizer_parts(optimizer):
        if not row_updates.updates_by_element(each):
            return type(each).__name__
    return ""


def variables_read_whole(traced: Any, candidates: Iterable[Any]) -> list[str]:
    """Return the variables that a step reads as a whole only to look up some rows.

    A variable that is read is copied to its reader; `tf.gather(variable, rows)` with a TensorFlow
    variable looks the rows up on its ps. Keras 3's `Embedding` does the first (Keras 3.15): to
    TensorFlow its variable is a plain tensor.
    """
    variables = {id(variable.value.handle): variable.path for variable in candidates}
    inside = {inner.name: variables.get(id(outer)) for outer, inner in traced.graph.captures}
    names = []
    for op in traced.graph.get_operations():
        if op.type == "ReadVariableOp" and _feeds_a_lookup(op):
            names.append(inside.get(op.inputs[0].name))
    return list(filter(None, names))


def _feeds_a_lookup(op: Any) -> bool:
    """Return whether this operation's result, or a copy of it, is looked up by a `GatherV2`."""
    for output in op.outputs:
        for user in output.consumers():
            if user.type == "GatherV2" and user.inputs[0].name == output.name:
                return True
            if user.type == "Identity" and _feeds_a_lookup(user):
                return True
    return False


def is_finite_variable(variable: Any) -> bool:
    import tensorflow as tf

    from services.trainer.worker.sharded_table import ps_variables

    return all(bool(tf.reduce_all(tf.math.is_finite(each))) for each in ps_variables(variable))


if __name__ == "__main__":
    main()
