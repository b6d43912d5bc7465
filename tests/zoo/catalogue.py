"""The programs of the zoo: epochs and batches, metrics, and how to disable their features."""

from __future__ import annotations

from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "programs"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One program. `metric`: its name in the result of a job.

    `shuffled`: its feature is the order of examples, so it is disabled with `shuffle: off` and not
    with `feature: false`. `reads_files`: its data is in files, in the folder of its parameter
    `folder`.
    """

    epochs: int
    batch: int
    metric: str
    shuffled: bool = False
    reads_files: bool = False

    def params(self, folder: Path) -> dict[str, str]:
        """Return the program's parameters in a job."""
        return {"folder": str(folder)} if self.reads_files else {}


ZOO = {
    "accumulation": Entry(epochs=20, batch=8, metric="accuracy"),
    "convnet": Entry(epochs=12, batch=32, metric="accuracy"),
    "csv_files": Entry(epochs=15, batch=64, metric="error", reads_files=True),
    "distillation": Entry(epochs=25, batch=32, metric="accuracy"),
    "dqn": Entry(epochs=15, batch=64, metric="value_error", reads_files=True),
    "gan": Entry(epochs=30, batch=128, metric="energy_distance"),
    "half_precision": Entry(epochs=20, batch=32, metric="accuracy"),
    "large_tables": Entry(epochs=8, batch=64, metric="auc"),
    "own_loss": Entry(epochs=30, batch=32, metric="image_error"),
    "padded_text": Entry(epochs=5, batch=32, metric="accuracy"),
    "several_outputs": Entry(epochs=20, batch=32, metric="digit_accuracy"),
    "sorted_digits": Entry(epochs=20, batch=32, metric="accuracy", shuffled=True),
    "tfrecord_files": Entry(epochs=8, batch=32, metric="accuracy", reads_files=True),
    "transformer": Entry(epochs=12, batch=64, metric="accuracy"),
    "two_rates": Entry(epochs=60, batch=16, metric="accuracy"),
    "wide_and_deep": Entry(epochs=8, batch=64, metric="auc"),
}
