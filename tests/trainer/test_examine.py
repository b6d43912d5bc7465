"""What is looked at in the process that tries a program. (The whole of it:
`tests/cli/test_doctor.py`.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from services.trainer import examine
from services.trainer.examined import Asked, Examined

EXAMPLES, BATCH = 100, 8
Sample = Callable[[Callable[[int, int], Any]], Examined]


@pytest.fixture
def sample() -> Iterator[Sample]:
    """What is told of the examples that a function gives."""
    reads, writes = os.pipe()

    def sampled(dataset: Callable[[int, int], Any]) -> Examined:
        examiner = examine.Examiner(Asked(program="mine.py", batch=BATCH, ps=1), writes)
        examiner.seen = Examined(examples=EXAMPLES)
        examiner._sample(SimpleNamespace(dataset=dataset))  # type: ignore[arg-type]
        told = os.read(reads, 1 << 20)
        assert (
            told.endswith(b"\n")
            and msgspec.json.decode(told.splitlines()[-1], type=Examined) == examiner.seen
        )
        return examiner.seen

    yield sampled
    os.close(reads)
    os.close(writes)


def pairs(inputs: Any, labels: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((inputs, labels))


def plain(start: int, stop: int) -> Any:
    numbers = np.arange(start, stop)
    return pairs({"x": numbers[:, None] * [1.0, 2.0], "word": [f"w{n}" for n in numbers]}, numbers)


def test_an_example_has_the_same_digest_however_it_is_read(sample: Sample) -> None:
    seen = sample(plain)

    assert seen.together == seen.alone and len(seen.together) == 24 and seen.infinite == ()
    assert len(set(seen.together.values())) == 24 and {0, 50, 99} <= set(seen.together)
    assert seen.read_s is not None and seen.read_s > 0


def test_an_example_that_depends_on_its_batch_has_another(sample: Sample) -> None:
    seen = sample(lambda start, stop: plain(start, stop).shuffle(BATCH, seed=1))

    assert any(seen.together[n] != seen.alone[n] for n in seen.together)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_none_is_found_in_its_example(sample: Sample, bad: float) -> None:
    def spoilt(start: int, stop: int) -> Any:
        numbers = np.arange(start, stop)
        return pairs(np.where(numbers == 97, bad, 1.0), numbers)

    assert sample(spoilt).infinite == (97,)


def one_hot(labels: Any) -> Any:
    return np.eye(10, dtype="float32")[labels]


BY_CLASS = np.arange(EXAMPLES) // 10
SHUFFLED = np.random.default_rng(1).permutation(BY_CLASS)


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        (BY_CLASS, True),
        (BY_CLASS[:, None], True),
        (one_hot(BY_CLASS), True),
        (BY_CLASS[::-1].astype("float32"), True),
        (BY_CLASS > 4, True),
        (SHUFFLED, False),
        (one_hot(SHUFFLED), False),
        (np.zeros(EXAMPLES), False),
        (np.stack([BY_CLASS, SHUFFLED], axis=1), False),
        (BY_CLASS.astype(str), False),
    ],
    ids=[
        "numbers",
        "column",
        "one-hot",
        "falling",
        "yes-no",
        "shuffled",
        "one-hot-shuffled",
        "one",
        "two",
        "text",
    ],
)
def test_labels_in_an_order_are_found_by_their_first_batches_and_those_far_apart(
    sample: Sample, labels: Any, ordered: bool
) -> None:
    assert (
        sample(lambda start, stop: pairs(np.arange(start, stop), labels[start:stop])).ordered
        is ordered
    )


def test_no_more_examples_are_read_at_once_than_a_worker_may_hold() -> None:
    asked, reads = Asked(program="mine.py", batch=BATCH, device_batch_max=3, ps=1), list[int]()

    def noted(start: int, stop: int) -> Any:
        reads.append(stop - start)
        return plain(start, stop)

    examiner = examine.Examiner(asked, os.open(os.devnull, os.O_WRONLY))
    examiner.seen = Examined(examples=EXAMPLES)
    examiner._sample(SimpleNamespace(dataset=noted))  # type: ignore[arg-type]

    assert max(reads) == 3
