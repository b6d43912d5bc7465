"""TensorBoard's event files, beside a job's checkpoints: what its chiefs report anyway. Edge.

Training neither waits for them nor ends because of them: a chief leaves its words in a queue and a
thread of its own writes; where it cannot, it says so once, drops what comes, and tries again after
a while. Flushing a file on an object store may mean to send all of it again, so the next one waits
until flushing takes at most SHARE of the time.

One folder for all generations of a job, one file a generation, named so that TensorBoard reads them
in their order. A generation that goes on from a checkpoint older than the last point says so (a
session's START), and TensorBoard forgets what lies behind it.

Not `tf.summary`: its `scalar` and `text` are in the package tensorboard, which a trainer's image
has not.

What a chief's reports are in TensorBoard: numbers by name, and a pause as words. Pure.

Every curve is over examples applied, which mean the same whatever the batch is, and goes on through
all generations.

    loss                   mean over the examples since the point before
    examples_per_second    examples since the point before, over the time since then, of at least LEAST_S
    epoch                  complete epochs
    update                 updates applied
    tasks/ps, tasks/workers, tasks/batch        of the generation that trains; a batch is in examples
    learning_rate          of this generation, where it is not a schedule of the program's own
    pause/seconds          how long training stood still for a hand-over; pause/marks tells of each in words

A point is written when SPACING of a generation's time has passed since the one before, and not
before LEAST_S: each report of the first minutes, a few thousand points of a week; and the last one
before a hand-over or the end.
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
from services.trainer.worker.checkpoint import make_folder
from shared import text

FOLDER = "summaries"
KEPT, SHARE = 1000, 1 / 20
AGAIN_S, LAST_S = 60.0, 2.0
VERSION = "brain.Event:2"
FLUSH, CLOSE = object(), object()


class Summaries:
    """Of one generation's chief. Nothing is written before `begin`; every call returns at once, but
    `close`.
    """

    def __init__(
        self, checkpoint_dir: str, size: Size, complain: Callable[[str], None] | None = None
    ) -> None:
        self._folder, self._size = f"{checkpoint_dir}/{FOLDER}", size
        self._complain = complain or _to_stderr
        self._words: queue.Queue[Any] = queue.Queue(KEPT)
        self._thread = threading.Thread(target=self._write, name="summaries", daemon=True)
        self._writer: Any = None
        self._again_s = self._flush_s = 0.0
        self._so_far: Gathered | None = None
        self._newest: Progress | None = None  # as long as it is in no point
        self._complained = False

    def begin(self, restored: int, word: Resumed) -> None:
        """The generation trains, from a checkpoint with so many examples on."""
        self._thread.start()
        self._put(restored)
        self._put(word)

    def report(self, word: Progress) -> None:
        self._put(word)

    def flush(self) -> None:
        """This process may be ended soon."""
        self._put(FLUSH)

    def close(self, within_s: float = LAST_S) -> None:
        """Write what is left; return when that is done, or the time is over."""
        self._put(CLOSE)
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _put(self, word: object) -> None:
        with contextlib.suppress(queue.Full):
            self._words.put_nowait((word, time.time(), time.monotonic()))

    # ------------------------------------------------------------ the thread

    def _write(self) -> None:
        word: object = None
        while word is not CLOSE:
            word, at_s, now_s = self._words.get()
            try:
                self._one(word, at_s, now_s)
            except (tf.errors.OpError, OSError) as error:
                self._give_up_for_now(error)

    def _one(self, word: object, at_s: float, now_s: float) -> None:
        if isinstance(word, int):
            self._so_far = begun(word, now_s)
            self._add(
                at_s, word + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            )
        elif isinstance(word, Resumed):
            values = [
                *_scalars(beginning(word, self._size)),
                _text("pause/marks", told(word, self._size)),
            ]
            self._add(at_s, word.samples, summary=summary_pb2.Summary(value=values))
        elif isinstance(word, Progress):
            self._heard(word, at_s, now_s)
        elif self._newest is not None:
            self._point(self._newest, at_s, now_s)
        self._flush(word is FLUSH or word is CLOSE)

    def _heard(self, word: Progress, at_s: float, now_s: float) -> None:
        if self._so_far is not None:
            self._so_far, self._newest = gathered(self._so_far, word), word
            if is_due(self._so_far, now_s):
                self._point(word, at_s, now_s)

    def _point(self, word: Progress, at_s: float, now_s: float) -> None:
        if self._so_far is not None:
            values = _scalars(numbers(self._so_far, word, self._size, now_s))
            self._so_far, self._newest = after(self._so_far, word, now_s), None
            self._add(at_s, word.samples, summary=summary_pb2.Summary(value=values))

    def _add(self, at_s: float, step: int, **what: Any) -> None:
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

    def _give_up_for_now(self, error: Any) -> None:
        writer, self._writer = self._writer, None
        self._again_s = time.monotonic() + AGAIN_S
        with contextlib.suppress(tf.errors.OpError, OSError):
            if writer is not None:
                writer.close()
        if not self._complained:
            self._complained = True
            why, remedy = failure_cause.trouble(
                type(error).__name__, getattr(error, "message", "") or str(error)
            )
            self._complain(
                f"no summaries for TensorBoard under {self._folder}: {why}; {remedy}; training goes on"
            )


def _file_name(generation: int, at_s: float) -> str:
    """By generation first: a chief's clock may be behind that of the one before."""
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


LEAST_S, SPACING = 0.5, 1 / 500


class Size(msgspec.Struct, frozen=True):
    """Of a generation; `batch` in examples."""

    generation: int
    ps: int
    workers: int
    batch: int


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What was reported since the last point. `lost`: sum of loss x examples; `weighed`: the
    examples in it.

    `since`: the last point's examples, and when it was (`since_s`, of a clock that only rises);
    `began_s`: when the generation did.
    """

    began_s: float
    since_s: float
    since: int
    lost: float = 0.0
    weighed: int = 0
    newest: int = 0


def size_of(assignment: Assignment) -> Size:
    ps, workers = (len(assignment.cluster.get(role, ())) for role in ("ps", "worker"))
    return Size(assignment.generation, ps, workers, assignment.batch)


def begun(samples: int, now_s: float) -> Gathered:
    return Gathered(began_s=now_s, since_s=now_s, since=samples, newest=samples)


def gathered(so_far: Gathered, word: Progress) -> Gathered:
    """With one more report, whose loss is the mean over the examples since the report before."""
    more = word.samples - so_far.newest
    if word.loss is None or not math.isfinite(word.loss) or more <= 0:
        return msgspec.structs.replace(so_far, newest=word.samples)
    lost, weighed = so_far.lost + word.loss * more, so_far.weighed + more
    return msgspec.structs.replace(so_far, lost=lost, weighed=weighed, newest=word.samples)


def is_due(so_far: Gathered, now_s: float) -> bool:
    return now_s - so_far.since_s >= max(LEAST_S, SPACING * (now_s - so_far.began_s))


def numbers(so_far: Gathered, word: Progress, size: Size, now_s: float) -> dict[str, float]:
    """The point that the newest report makes, with all since the one before.

    Behind a very short time nothing is said of the speed.
    """
    passed_s = now_s - so_far.since_s
    loss = {"loss": so_far.lost / so_far.weighed} if so_far.weighed else {}
    speed = (
        {"examples_per_second": max(0, word.samples - so_far.since) / passed_s}
        if passed_s >= LEAST_S
        else {}
    )
    return {
        **loss,
        **speed,
        "epoch": float(word.epoch),
        "update": float(word.step),
        **sizes(size),
    }


def after(so_far: Gathered, word: Progress, now_s: float) -> Gathered:
    """Behind that point."""
    return Gathered(began_s=so_far.began_s, since_s=now_s, since=word.samples, newest=word.samples)


def sizes(size: Size) -> dict[str, float]:
    return {
        "tasks/ps": float(size.ps),
        "tasks/workers": float(size.workers),
        "tasks/batch": float(size.batch),
    }


def beginning(word: Resumed, size: Size) -> dict[str, float]:
    """What is known once a generation trains."""
    rate = {} if word.learning_rate is None else {"learning_rate": word.learning_rate}
    pause = {} if word.pause_s is None else {"pause/seconds": word.pause_s}
    return {**sizes(size), **rate, **pause}


def told(word: Resumed, size: Size) -> str:
    """One line of Markdown: what trains from here on, and what it cost."""
    tasks = f"{text.format_size(size.ps, size.workers)}, batch {size.batch}"
    what = f"**generation {size.generation}** ({tasks}) trains from example {word.samples:,} on"
    if word.pause_s is None:
        return f"{what}."
    parts = f"restore {word.restore_s:.2f} s, first step {word.first_step_s:.2f} s"
    return f"{what}, after a pause of **{word.pause_s:.2f} s** (of it {parts})."
