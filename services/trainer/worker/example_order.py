"""The order of the examples of an epoch.

    number(e, i) = P[key(seed, e)](i)        0 <= i < count

is the example number at place i of epoch e. P is a keyed permutation: a Feistel network over the
bits of i (Luby and Rackoff 1988), walked until it falls below `count` (Black and Rogaway 2002). So
the order is a pure function of seed, epoch and count, and for ranges of the size of an example: no
history of sizes, hand-overs and crashes changes it, any place can be computed alone, and nothing is
stored.

A program that reads ranges, `dataset(start, stop)`, would have to be called for every single
example. Its examples are permuted in blocks of neighbours, and the places of each window of 32
blocks are permuted, too, so that a batch does not consist of a few blocks. A window has as many
examples as a worker usually reads at a time, so that it reads whole blocks. If all examples fit in
a window, they are permuted one by one. If there are at most 16,384, blocks are short enough for
4,096 of them, so that two epochs are not correlated. A last, shorter block stays last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
ROUNDS = 6
WINDOW_BYTES, LONGEST_WINDOW, WINDOW_BLOCKS = 32 << 20, 131_072, 32
FEW_EXAMPLES, FEWEST_BLOCKS = 16_384, 4096
"""These may not change: a job continues under a later version in the middle of an epoch."""
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64
STEP = np.uint64(0x9E3779B97F4A7C15)


class ExampleOrder(NamedTuple):
    """The order of all epochs. `seed`: None for the order of the numbers. `block`: neighbours that
    are permuted as one; `window`: places that are permuted among each other after that, 1: none.
    """

    examples: int
    seed: int | None = None
    block: int = 1
    window: int = 1

    def numbers(self, start: int, stop: int) -> Numbers:
        """Return the example numbers at positions start .. stop - 1, which lie in one epoch."""
        epoch = start // self.examples
        places = np.arange(start, stop, dtype=np.int64) - epoch * self.examples
        if self.seed is None:
            return places
        key = epoch_key(self.seed, epoch)
        if self.window > 1:
            places = self._mix_windows(places, key)
        blocks = self.examples // self.block
        which = np.minimum(places // self.block, blocks)
        whole = which < blocks
        numbers = places.copy()
        moved = permute(which[whole], blocks, key)
        numbers[whole] = moved * self.block + places[whole] % self.block
        return numbers

    def _mix_windows(self, places: Numbers, key: int) -> Numbers:
        """Return the places of an epoch, permuted within each window."""
        mixed = places.copy()
        for number in np.unique(places // self.window):
            first = int(number) * self.window
            inside = (places >= first) & (places < first + self.window)
            count = min(self.window, self.examples - first)
            mixed[inside] = first + permute(
                places[inside] - first, count, mix_keys(key, int(number))
            )
        return mixed


def range_order(examples: int, seed: int, example_bytes: int) -> ExampleOrder:
    """Return the order of a program that reads ranges."""
    window = min(max(WINDOW_BYTES // example_bytes, WINDOW_BLOCKS), LONGEST_WINDOW)
    if examples <= window:
        return ExampleOrder(examples, seed)
    block = window // WINDOW_BLOCKS
    window = block * WINDOW_BLOCKS
    if examples <= FEW_EXAMPLES:
        block = min(block, max(examples // FEWEST_BLOCKS, 1))
    return ExampleOrder(examples, seed, block, window)


def epoch_key(seed: int, epoch: int) -> int:
    """Return the key of the permutation of an epoch, of 64 bits."""
    start = np.array([seed % 2**64], np.uint64)
    with np.errstate(over="ignore"):
        return int(_mix_bits(_mix_bits(start) + np.uint64(epoch) * STEP)[0])


def mix_keys(key: int, number: int) -> int:
    """Return a key of 64 bits that depends on both."""
    with np.errstate(over="ignore"):
        return int(_mix_bits(np.array([key], np.uint64) + np.uint64(number + 1) * STEP)[0])


def permute(places: Numbers, count: int, key: int) -> Numbers:
    """Return the values of a permutation of 0 .. count - 1 at these places."""
    half = max((max(count - 1, 1).bit_length() + 1) // 2, 1)
    values = places.astype(np.uint64)
    outside = np.ones(len(values), bool)
    while outside.any():
        values[outside] = _encrypt(values[outside], half, key)
        outside = values >= count
    return values.astype(np.int64)


def _encrypt(values: NDArray[np.uint64], half: int, key: int) -> NDArray[np.uint64]:
    """Return the values of a permutation of 0 .. 4^half - 1."""
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    left, right = values >> shift, values & mask
    with np.errstate(over="ignore"):
        for turn in range(ROUNDS):
            round_key = np.uint64((key + turn * int(STEP)) % 2**64)
            left, right = right, left ^ (_mix_bits(right + round_key) & mask)
    return (left << shift) | right


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each value (the last steps of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * MIX[0]
    values = (values ^ (values >> np.uint64(27))) * MIX[1]
    return values ^ (values >> np.uint64(31))
