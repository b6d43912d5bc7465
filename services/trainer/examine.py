"""A program is tried in this process, by the functions that a job's tasks try it with. For `weir
doctor`. Edge.

    python -m services.trainer.examine FD ASKED

Its import, its examples, its model on parameter servers, two updates, its evaluation: chief, ps and
a worker stand in this one process, which tells over FD what it sees (`examined.py`). It ends with
its reader.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from services.trainer import cause, inspecting
from services.trainer.examined import (
    Asked,
    Examined,
    first_starts,
    looked_at,
    reads_at_once,
    starts,
)
from services.trainer.label_order import is_ordered
from services.trainer.orders import Failed
from services.trainer.watchdog import Watchdog
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

        _ = (
            tf.keras,
            tf.distribute.ParameterServerStrategy,
        )  # loaded late by TensorFlow, and not by the program
        before = inspecting.resident()
        began = time.monotonic()
        path = Path(self.asked.program)
        with self.dog.limited("its import"):
            module = program.load(path, program.digest_of(path.read_bytes()))
        self.tell(
            loaded_s=time.monotonic() - began,
            loaded_gib=max(inspecting.resident() - before, 0) / GIB,
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
            together |= {number: inspecting.digest(batch, number - start) for number in chosen}
            infinite += [
                number for number in chosen if not inspecting.finite(batch, number - start)
            ]
        for number in reversed(sorted(together)):
            alone[number] = inspecting.digest(self._read(module, number, number + 1), 0)
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
        from services.trainer import feed

        found: list[float] = []
        for start in where:
            with self.dog.limited(f"dataset({start}, {start + size})"):
                _, labels = feed.first(module, start, start + size)
            chosen = inspecting.class_labels(labels)
            if chosen is None:
                return False
            found += chosen
        return is_ordered(found)

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
        from services.trainer import build, feed, optimizers, passes, step

        strategy, coordinator, self.standing = _cluster(self.asked.ps)
        feed.serve(module, self.dog)
        vars(module)["model"] = inspecting.named_anew(module.model)
        with self.dog.limited("model() or optimizer()"):
            built = build.build(module, strategy, self.asked.ps)
        slots = sum(inspecting.bytes_of(variable) for variable in built.optimizer.variables)
        scheduled = None in optimizers.program_rates(built.optimizer)
        self.tell(variables=tuple(inspecting.held(built.model)), slots=slots, scheduled=scheduled)
        self._compare(module, built.model)
        unlearnt = inspecting.noting_unlearnt(built.optimizer)
        with self.dog.limited(
            "dataset(0, 1), or a step through the model and loss(), while it is traced,"
        ):
            batches = optimizers.accumulated_batches(built.optimizer)
            several = passes.has_several(batches, self.asked.batch, self.asked.device_batch_max)
            traced = step.traced(module, strategy, built, several).get_concrete_function()
        whole = inspecting.read_whole(traced, built.model)
        self.tell(variables=tuple(inspecting.held(built.model, unlearnt, whole)))
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
            labels, outputs = inspecting.answered(module, model, size)
            shapes = map(inspecting.shapes, (labels, outputs))
            self.tell(
                **dict(zip(("labels", "outputs"), shapes, strict=True)),
                span=inspecting.span(outputs),
            )
            self.tell(lossy=inspecting.compared(module.loss, labels, outputs, size))
            self.tell(mixed=inspecting.mixed(module.loss, labels, outputs))

    def _update(self, coordinator: Any, traced: Any, model: Any) -> None:
        """Two, for the first is slower."""
        from services.trainer import step
        from services.trainer.lanes import fetched
        from services.trainer.passes import split_passes

        size = min(self.asked.batch, self.seen.examples or 0)
        where = step.arguments(split_passes([(0, size)], self.asked.device_batch_max))
        loss = fetched(coordinator.schedule(traced, args=where))
        began = time.monotonic()
        again = fetched(coordinator.schedule(traced, args=where))
        took_s = time.monotonic() - began
        finite = math.isfinite(loss + again) and all(
            map(inspecting.all_finite, model.trainable_variables)
        )
        self.tell(update_s=took_s, loss=loss if math.isfinite(loss) else None, finite=finite)

    def _evaluate(self, module: ModuleType) -> None:
        from services.trainer import evaluate
        from services.trainer.program import has

        evaluate.tried(module, self.dog)
        self.tell(evaluated=has(module, "evaluation"))


# ---------------------------------------------------------------- the cluster in this process


def _cluster(ps: int) -> tuple[Any, Any, Any]:
    """A chief's strategy over so many ps and one worker, its coordinator, and what is to be kept
    meanwhile.
    """
    import tensorflow as tf

    from services.trainer import lean
    from services.trainer.chief import connect
    from services.trainer.ports import Ports

    held = {
        role: [Ports("0,0") for _ in range(count)]
        for role, count in (("chief", 1), ("ps", ps), ("worker", 1))
    }
    cluster = {
        role: [f"127.0.0.1:{each.numbers[0]}" for each in ports] for role, ports in held.items()
    }
    servers = [
        lean.serve(cluster, role, i, 2, 1)
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


if __name__ == "__main__":
    main()
