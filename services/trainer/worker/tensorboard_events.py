"""TensorBoard's event files beside a job's checkpoints: the reports of its chiefs as curves.

Training neither waits for these files nor ends because of them: a chief puts its reports into a
queue, and a thread writes them. If it cannot write, it warns once, drops reports, and tries again
later. Flushing a file on an object store may send all of it again, so flushing takes at most SHARE
of the time.

There is one folder for all generations of a job and one file a generation, named so that
TensorBoard reads them in order. A generation that continues from a checkpoint older than the last
point writes a session's START, and TensorBoard forgets the points after it. Event protos are
written directly: `tf.summary.scalar` and `text` need the package tensorboard, which a trainer's
image lacks.

Every curve is over examples applied, which mean the same for every batch size, and continues
through all generations.

    loss                   mean over the examples since the last point
    examples_per_second    examples since the last point, over the time since then, of at least LEAST_S
    epoch                  complete epochs
    update                 updates applied
    tasks/ps, tasks/workers, tasks/batch        of the generation that trains; a batch is in examples
    learning_rate          of this generation, if it is not a schedule of the program
    pause/seconds          time for which training stood still for a hand-over; pause/marks describes each in words

A point is written when SPACING of a generation's time has passed since the last one, and not before
LEAST_S: each report of the first minutes, a few thousand points of a week; and the last one before
a hand-over or the end.
"""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import tensorflow as tf
from tensorflow.core.framework import summary_pb2
from tensorflow.core.util import event_pb2

from services.trainer.protocol import Assignment, Progress, Resumed
from services.trainer.worker import failure_cause
from services.trainer.worker.checkpoint_files import make_folder
from shared import text

FOLDER = "summaries"
KEPT, SHARE = 1000, 1 / 20
AGAIN_S, LAST_S = 60.0, 2.0
VERSION = "brain.Event:2"
FLUSH, CLOSE = object(), object()
LEAST_S, SPACING = 0.5, 1 / 500


class EventWriter:
    """The writer of one generation's chief. Nothing is written before `begin`; only `close`
    waits.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        size: GenerationSize,
        complain: Callable[[str], None] | None = None,
    ) -> None:
        self._folder, self._size = f"{checkpoint_dir}/{FOLDER}", size
        self._complain = complain or _to_stderr
        self._items: queue.Queue[Any] = queue.Queue(KEPT)
        self._thread = threading.Thread(target=self._run_writer, name="summaries", daemon=True)
        self._writer: Any = None
        self._again_s = self._flush_s = 0.0
        self._so_far: OpenPoint | None = None
        self._newest: Progress | None = None  # not part of a point yet
        self._complained = False

    def begin(self, restored: int, report: Resumed) -> None:
        """Start: the generation trains from a checkpoint with this number of examples."""
        self._thread.start()
        self._enqueue(restored)
        self._enqueue(report)

    def report(self, report: Progress) -> None:
        self._enqueue(report)

    def flush(self) -> None:
        """Write soon: this process may be ended."""
        self._enqueue(FLUSH)

    def close(self, within_s: float = LAST_S) -> None:
        """Write the rest; return when that is done or the time is over."""
        self._enqueue(CLOSE)
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _enqueue(self, item: object) -> None:
        with contextlib.suppress(queue.Full):
            self._items.put_nowait((item, time.time(), time.monotonic()))

    # ------------------------------------------------------------ the thread

    def _run_writer(self) -> None:
        item: object = None
        while item is not CLOSE:
            item, at_s, now_s = self._items.get()
            try:
                self._write_item(item, at_s, now_s)
            except (tf.errors.OpError, OSError) as error:
                self._pause_writing(error)

    def _write_item(self, item: object, at_s: float, now_s: float) -> None:
        if isinstance(item, int):
            self._so_far = new_point(item, now_s)
            self._add_event(
                at_s,
                item + 1,
                session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START),
            )
        elif isinstance(item, Resumed):
            values = [
                *_scalars(start_values(item, self._size)),
                _text("pause/marks", describe_start(item, self._size)),
            ]
            self._add_event(at_s, item.samples, summary=summary_pb2.Summary(value=values))
        elif isinstance(item, Progress):
            self._on_progress(item, at_s, now_s)
        elif self._newest is not None:
            self._write_point(self._newest, at_s, now_s)
        self._flush(item is FLUSH or item is CLOSE)

    def _on_progress(self, report: Progress, at_s: float, now_s: float) -> None:
        if self._so_far is not None:
            self._so_far, self._newest = add_report(self._so_far, report), report
            if is_point_due(self._so_far, now_s):
                self._write_point(report, at_s, now_s)

    def _write_point(self, report: Progress, at_s: float, now_s: float) -> None:
        if self._so_far is not None:
            values = _scalars(point_values(self._so_far, report, self._size, now_s))
            self._so_far, self._newest = next_point(self._so_far, report, now_s), None
            self._add_event(at_s, report.samples, summary=summary_pb2.Summary(value=values))

    def _add_event(self, at_s: float, step: int, **what: Any) -> None:
        if self._writer is None and time.monotonic() >= self._again_s:
            make_folder(self._folder)
            self._writer = tf.io.TFRecordWriter(
                f"{self._folder}/{_file_name(self._size.generation, at_s)}"
            )
            self._writer.write(
                event_pb2.Event(wall_time=at_s, file_version=VERSION).SerializeToString()
            )
        if self._writer is not None:
            self._writer.write(
                event_pb2.Event(wall_time=at_s, step=step, **what).SerializeToString()
            )

    def _flush(self, at_once: bool) -> None:
        began_s = time.monotonic()
        if self._writer is None or (began_s < self._flush_s and not at_once):
            return
        self._writer.flush()
        done_s = time.monotonic()
        self._flush_s = done_s + (done_s - began_s) / SHARE

    def _pause_writing(self, error: Any) -> None:
        writer, self._writer = self._writer, None
        self._again_s = time.monotonic() + AGAIN_S
        with contextlib.suppress(tf.errors.OpError, OSError):
            if writer is not None:
                writer.close()
        if not self._complained:
            self._complained = True
            why, remedy = failure_cause.explain_storage_error(
                type(error).__name__, getattr(error, "message", "") or str(error)
            )
            self._complain(
                f"no summaries for TensorBoard under {self._folder}: {why}; {remedy}; training"
                " continues"
            )


def _file_name(generation: int, at_s: float) -> str:
    """Return a name that sorts by generation first: a chief's clock may be behind its
    predecessor's.
    """
    return f"events.out.tfevents.{generation:010d}.{at_s:.0f}"


def _scalars(numbers: dict[str, float]) -> list[Any]:
    return [
        _value(
            tag, "scalars", tf.make_tensor_proto(number, tf.float32), summary_pb2.DATA_CLASS_SCALAR
        )
        for tag, number in numbers.items()
    ]


def _text(tag: str, text: str) -> Any:
    return _value(
        tag, "text", tf.make_tensor_proto(text.encode(), tf.string), summary_pb2.DATA_CLASS_TENSOR
    )


def _value(tag: str, plugin: str, tensor: Any, data_class: Any) -> Any:
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin)
    metadata = summary_pb2.SummaryMetadata(plugin_data=data, data_class=data_class)
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class GenerationSize(msgspec.Struct, frozen=True):
    """The tasks of a generation; `batch` in examples."""

    generation: int
    ps: int
    workers: int
    batch: int


class OpenPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The reports since the last point. `lost`: sum of loss x examples; `weighed`: the examples in
    it.

    `since`: the last point's examples, and when it was (`since_s`, monotonic clock); `began_s`:
    start of the generation.
    """

    began_s: float
    since_s: float
    since: int
    lost: float = 0.0
    weighed: int = 0
    newest: int = 0


def generation_size(assignment: Assignment) -> GenerationSize:
    ps, workers = (len(assignment.cluster.get(role, ())) for role in ("ps", "worker"))
    return GenerationSize(assignment.generation, ps, workers, assignment.batch)


def new_point(samples: int, now_s: float) -> OpenPoint:
    return OpenPoint(began_s=now_s, since_s=now_s, since=samples, newest=samples)


def add_report(so_far: OpenPoint, report: Progress) -> OpenPoint:
    """Add one report; its loss is the mean over the examples since the report before."""
    more = report.samples - so_far.newest
    if report.loss is None or not math.isfinite(report.loss) or more <= 0:
        return msgspec.structs.replace(so_far, newest=report.samples)
    lost, weighed = so_far.lost + report.loss * more, so_far.weighed + more
    return msgspec.structs.replace(so_far, lost=lost, weighed=weighed, newest=report.samples)


def is_point_due(so_far: OpenPoint, now_s: float) -> bool:
    return now_s - so_far.since_s >= max(LEAST_S, SPACING * (now_s - so_far.began_s))


def point_values(
    so_far: OpenPoint, report: Progress, size: GenerationSize, now_s: float
) -> dict[str, float]:
    """Return the values of the point that the newest report makes.

    The speed is left out after a very short time.
    """
    passed_s = now_s - so_far.since_s
    loss = {"loss": so_far.lost / so_far.weighed} if so_far.weighed else {}
    speed = (
        {"examples_per_second": max(0, report.samples - so_far.since) / passed_s}
        if passed_s >= LEAST_S
        else {}
    )
    return {
        **loss,
        **speed,
        "epoch": float(report.epoch),
        "update": float(report.step),
        **size_values(size),
    }


def next_point(so_far: OpenPoint, report: Progress, now_s: float) -> OpenPoint:
    """Return the empty point after this one."""
    return OpenPoint(
        began_s=so_far.began_s, since_s=now_s, since=report.samples, newest=report.samples
    )


def size_values(size: GenerationSize) -> dict[str, float]:
    return {
        "tasks/ps": float(size.ps),
        "tasks/workers": float(size.workers),
        "tasks/batch": float(size.batch),
    }


def start_values(report: Resumed, size: GenerationSize) -> dict[str, float]:
    """Return the values that are known once a generation trains."""
    rate = {} if report.learning_rate is None else {"learning_rate": report.learning_rate}
    pause = {} if report.pause_s is None else {"pause/seconds": report.pause_s}
    return {**size_values(size), **rate, **pause}


def describe_start(report: Resumed, size: GenerationSize) -> str:
    """Return one line of Markdown: the generation that starts, and its pause."""
    tasks = f"{text.format_size(size.ps, size.workers)}, batch {size.batch}"
    what = f"**generation {size.generation}** ({tasks}) trains from example {report.samples:,}"
    if report.pause_s is None:
        return f"{what}."
    parts = f"restore {report.restore_s:.2f} s, first step {report.first_step_s:.2f} s"
    return f"{what}, after a pause of **{report.pause_s:.2f} s** (of it {parts})."
