"""Tests of the rows of tables in files, within one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.table_files import EARLIER_PARTS, PARTS
from services.trainer.worker.sharded_table import ShardedTable, new_shards
from services.trainer.worker.table_division import divide_tables
from services.trainer.worker.table_layout import TableLayout
from services.trainer.worker.table_transfer import IDS, ROWS, TableTransfer

SHAPE = (500_009, 16)
KEY = "table"


def divided_table(ps: int) -> ShardedTable:
    """Return a table of zeros on this number of ps."""
    with divide_tables(partial(new_shards, ps=ps)):
        layer = keras.layers.Embedding(*SHAPE, embeddings_initializer="zeros")
        layer.build()
    table = layer.weights[0]
    assert isinstance(table, ShardedTable)
    return table


def write_delta(path: str, ids: np.ndarray, ps: int, parts: int) -> None:
    """Write a delta in which all values of a row are its number."""
    tensors = {}
    for place in range(ps):
        rows = TableLayout(SHAPE[0], parts).rows_of(place, ps)
        inside = ids[(ids >= rows.start) & (ids < rows.stop)]
        tensors[f"{IDS}/{place}/{KEY}"] = tf.constant(inside, tf.int64)
        values = np.repeat(inside[:, None], SHAPE[1], axis=1)
        tensors[f"{ROWS}/{place}/{KEY}"] = tf.constant(values, tf.float32)
    slices = [""] * len(tensors)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=list(tensors),
        shape_and_slices=slices,
        tensors=list(tensors.values()),
    )


@pytest.mark.parametrize("parts", [EARLIER_PARTS, PARTS], ids=["earlier parts", "parts"])
@pytest.mark.parametrize("ps", [3, 17])
def test_a_delta_is_read_with_the_parts_with_which_it_was_written(
    parts: int, ps: int, tmp_path: Path
) -> None:
    path = str(tmp_path / "ckpt-1")
    bounds = [TableLayout(SHAPE[0], parts).rows_of(place, ps).start for place in range(ps)]
    ids = np.array([0, *(row + step for row in bounds[1:] for step in (-1, 0)), SHAPE[0] - 1])
    write_delta(path, ids, ps, parts)

    table = divided_table(ps)
    TableTransfer({KEY: table}).apply_delta(path, ps, parts)

    expected = np.zeros(SHAPE, "float32")
    expected[ids] = ids[:, None]
    assert np.array_equal(np.concatenate([each.variable for each in table.shards]), expected)
