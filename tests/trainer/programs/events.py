"""`python events.py FOLDER`: print the TensorBoard events of a folder as JSON.

The files are sorted by name. With `write` as the first argument, two generations write events
first, of which the second begins from an older checkpoint.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf
from tensorflow.core.util import event_pb2

from services.trainer.protocol import Progress, Resumed
from services.trainer.worker.tensorboard_events import EventWriter, GenerationSize


def read(folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in sorted(tf.io.gfile.listdir(folder)):
        for record in tf.data.TFRecordDataset(f"{folder}/{name}"):
            found.append({"file": name, **told(event_pb2.Event.FromString(record.numpy()))})
    return found


def told(event: Any) -> dict[str, Any]:
    values = {
        value.tag: plain(tf.make_ndarray(value.tensor).item()) for value in event.summary.value
    }
    plugins = {value.metadata.plugin_data.plugin_name for value in event.summary.value}
    started = event.HasField("session_log") and event.session_log.status == event.session_log.START
    return {
        "at_s": event.wall_time,
        "step": event.step,
        "version": event.file_version,
        "starts": started,
        "values": values,
        "plugins": sorted(plugins),
    }


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def write(folder: str, complaints: list[str]) -> None:
    """Write events: generation 1 applies 96 examples and saves 64; generation 2 starts at 64."""
    for generation, restored, reports in ((1, 0, (32, 64, 96)), (2, 64, (80, 128))):
        chief = EventWriter(
            folder, GenerationSize(generation, 1, generation, 16), complaints.append
        )
        pause_s = 0.5 if generation > 1 else None
        chief.begin(
            restored,
            Resumed(
                step=1, samples=restored + 16, pause_s=pause_s, restore_s=0.2, first_step_s=0.1
            ),
        )
        for samples in reports:
            step = samples // 16
            chief.report(
                Progress(
                    step=step,
                    epoch=0,
                    samples=samples,
                    total_samples=500,
                    samples_per_second=9,
                    loss=2,
                )
            )
            chief.flush()
        chief.close()


if __name__ == "__main__":
    complaints: list[str] = []
    if sys.argv[1] == "write":
        write(sys.argv[2], complaints)
    folder = f"{sys.argv[-1]}/summaries"
    events = read(folder) if tf.io.gfile.isdir(folder) else []
    print(json.dumps({"events": events, "complaints": complaints}))
