"""Tests of the order of the examples of files, and of what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker.example_source import source_of
from services.trainer.worker.file_source import FileList, group_count
from services.trainer.worker.input_pipeline import _adapt_graph
from services.trainer.worker.shard_ledger import GROUP_POSITIONS, Shard
from services.trainer.worker.watchdog import Watchdog
from shared.messages import Shuffle

LENGTHS = (30, 0, 7, 55, 1)


def program(**functions: Any) -> Any:
    return SimpleNamespace(__file__=__file__, train_step=print, **functions)


def number_files(folder: Path, lengths: tuple[int, ...] = LENGTHS) -> Any:
    """Return a program whose files have the numbers from 0 on, one per line."""
    paths, start = [], 0
    for at, length in enumerate(lengths):
        path = folder / f"part-{at:03}"
        path.write_text("".join(f"{n}\n" for n in range(start, start + length)))
        start += length
        paths.append(str(path))
    return program(files=lambda: paths, read=tf.data.TextLineDataset)


def positions(source: Any, order: Any, start: int, stop: int) -> list[int]:
    return [int(line) for line in source.dataset(order, (Shard(start, stop),)).as_numpy_iterator()]


def epoch(source: Any, order: Any, number: int) -> list[list[int]]:
    """Return the examples of each group of an epoch, in the order of the groups."""
    first = number * order.groups
    return [
        positions(source, order, place * GROUP_POSITIONS, (place + 1) * GROUP_POSITIONS)
        for place in range(first, first + order.groups)
    ]


def test_each_epoch_has_every_example_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    source = source_of(number_files(tmp_path))
    order = source.order(Shuffle(seed=4, window=20))
    first, second = (epoch(source, order, number) for number in range(2))
    for found in (first, second):
        assert sorted(n for group in found for n in group) == list(range(sum(LENGTHS)))
        assert sorted(len(group) for group in found) == sorted(LENGTHS)
    assert first != second
    assert epoch(source_of(number_files(tmp_path)), order, 1) == second
    assert epoch(source, source.order(Shuffle(seed=5, window=20)), 0) != first


def test_without_shuffling_the_order_is_that_of_the_list(tmp_path: Path) -> None:
    source = source_of(number_files(tmp_path))
    for shuffle in (None, Shuffle(on=False)):
        found = epoch(source, source.order(shuffle), 1)
        assert [n for group in found for n in group] == list(range(sum(LENGTHS)))


def test_the_order_is_the_same_over_random_histories(tmp_path: Path) -> None:
    """A worker that continues a group gets the examples that the worker before would have got."""
    source = source_of(number_files(tmp_path))
    order = source.order(Shuffle(seed=1, window=10))
    whole = epoch(source, order, 0)
    for seed in range(20):
        chance = random.Random(seed)
        for place, group in enumerate(whole):
            found: list[int] = []
            while len(found) < len(group):
                start = place * GROUP_POSITIONS + len(found)
                found += positions(source, order, start, start + chance.randint(1, 20))
            assert found == group


def test_a_window_of_one_keeps_the_order_inside_of_a_file(tmp_path: Path) -> None:
    source = source_of(number_files(tmp_path))
    for group in epoch(source, source.order(Shuffle(seed=1, window=1)), 0):
        assert group == sorted(group)


def test_many_files_are_read_in_groups(tmp_path: Path) -> None:
    assert [group_count(n) for n in (1, 256, 257, 4096, 5000)] == [1, 256, 256, 256, 313]
    source = source_of(number_files(tmp_path, (2,) * 600))
    order = source.order(Shuffle(seed=2, window=4))
    found = epoch(source, order, 0)
    assert len(found) == 256 and {len(group) for group in found} == {4, 6}
    assert sorted(n for group in found for n in group) == list(range(1200))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (list, "files() returned no file"),
        (lambda: "a.csv", "files() returned <class 'str'>; a list of paths is needed"),
        (lambda: 7, "files() returned <class 'int'>; a list of paths is needed"),
        (lambda: ["a", "b", "a"], "files() has a more than once"),
        (lambda: ["a", 3], "files() has 3, a int; paths are needed"),
    ],
)
def test_a_bad_list_of_files_is_refused(found: Any, told: str) -> None:
    with pytest.raises(BadProgram) as caught:
        FileList(program(files=found, read=tf.data.TextLineDataset))
    assert told in str(caught.value)


def test_paths_may_be_objects(tmp_path: Path) -> None:
    files = FileList(program(files=lambda: [tmp_path / "a"], read=tf.data.TextLineDataset))
    assert files.names == [str(tmp_path / "a")]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda path: [1, 2], "returned <class 'list'>; a tf.data.Dataset is needed"),
        (lambda path: tf.data.Dataset.range(3).repeat(), "a dataset without an end"),
    ],
)
def test_a_bad_dataset_of_a_file_is_refused(made: Any, told: str) -> None:
    source = source_of(program(files=lambda: ["a"], read=made))
    with pytest.raises(BadProgram) as caught:
        source.dataset(source.order(None), (Shard(0, GROUP_POSITIONS),))
    assert "read('a')" in str(caught.value) and told in str(caught.value)


def test_another_list_than_the_chiefs_is_refused(tmp_path: Path) -> None:
    made = number_files(tmp_path)
    paths = made.files()
    order = source_of(made).order(None)
    other = source_of(program(files=lambda: paths[::-1], read=made.read))
    with pytest.raises(BadProgram, match="does not return the same list in every process"):
        other.dataset(order, (Shard(0, GROUP_POSITIONS),))


@pytest.mark.parametrize("lost", ["part-003", "part-000"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, lost: str) -> None:
    source = source_of(number_files(tmp_path))
    (tmp_path / lost).unlink()
    order = source.order(Shuffle(seed=4))
    for place in range(order.groups):
        if lost in source.call_name(order, (Shard(place * GROUP_POSITIONS, 0),)):
            break
    with pytest.raises(tf.errors.NotFoundError, match=f"{lost} cannot be read"):
        start = place * GROUP_POSITIONS
        source.check(
            order, (Shard(start, start + GROUP_POSITIONS),), Watchdog(__file__, 60.0, 60.0)
        )


def test_parallel_parts_keep_their_order_whatever_the_program_asks_for() -> None:
    made = tf.data.Dataset.range(4).interleave(
        tf.data.Dataset.range, num_parallel_calls=2, deterministic=False
    )
    graph = bytes(made._as_serialized_graph().numpy())
    assert b"deterministic" in graph and b"false" in graph
    assert b"false" not in _adapt_graph(graph)
