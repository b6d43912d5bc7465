"""Examples from files: the program's `files()` and `read(file)`.

    files()       the files of an epoch: paths that `read` understands, always in the same order
    read(file)    a `tf.data.Dataset` of the examples of one file

Files are read in groups. A program of at most `MOST_GROUPS` files has a group for each file; of
more files each group has several. One worker reads a group from its beginning to its end, so it
opens each file once an epoch. A worker gets its next group when it has read the one before, so a
slow worker gets fewer.

The order of an epoch is a pure function of the seed, the epoch and the list of files:

    groups               in a keyed permutation (`example_order.py`)
    files of a group     in a keyed permutation
    examples of a group  through the job's shuffle window, from which a generator with a key draws
                         the next example (`tf.data.Dataset.shuffle`)

So the examples of a group that are applied are a prefix of its order. A worker that continues a
group reads the examples that are applied already, and drops them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from services.trainer.program import BadProgram, files_prefix, has_function
from services.trainer.worker.example_order import epoch_key, mix_keys, permute
from services.trainer.worker.shard_ledger import GROUP_POSITIONS
from shared.messages import Shuffle
from shared.text import format_count

MOST_GROUPS, FILES_OF_GROUP = 256, 16
"""Maximum number of groups of an epoch, unless a group would have more than `FILES_OF_GROUP` files.
"""
DIGEST_BYTES = 7
SEEDS = 1 << 62


class FileOrder(NamedTuple):
    """The order of the examples of files. `seed` None: the order of the list.

    `digest`: of the list of files.
    """

    groups: int
    seed: int | None
    window: int
    digest: int

    @property
    def examples(self) -> int:
        """The number of positions of an epoch."""
        return self.groups * GROUP_POSITIONS

    def group(self, position: int) -> int:
        """Return the number of the group of files at this position."""
        epoch, place = self._place(position)
        if self.seed is None:
            return place
        return _permutation(self.groups, epoch_key(self.seed, epoch))[place]

    def group_key(self, position: int) -> int | None:
        """Return the key of the order inside of the group at this position; None: not shuffled."""
        if self.seed is None:
            return None
        epoch, _ = self._place(position)
        return mix_keys(epoch_key(self.seed, epoch), self.group(position))

    def _place(self, position: int) -> tuple[int, int]:
        return divmod(position // GROUP_POSITIONS, self.groups)


def _permutation(count: int, key: int) -> list[int]:
    return [int(number) for number in permute(np.arange(count), count, key)]


class FileList:
    """The files of a program, as `files()` returns them in this process."""

    def __init__(self, program: ModuleType) -> None:
        self._program = program
        self.names = _listed_files(program)
        self.groups = group_count(len(self.names))
        own = files_prefix(str(program.__file__))  # another folder in each pod
        text = "\0".join([name.removeprefix(own) for name in self.names]).encode()
        self.digest = int.from_bytes(hashlib.sha256(text).digest()[:DIGEST_BYTES], "big")

    def order(self, shuffle: Shuffle | None) -> FileOrder:
        if shuffle is None or not shuffle.on:
            return FileOrder(self.groups, None, 1, self.digest)
        return FileOrder(self.groups, shuffle.seed, shuffle.window, self.digest)

    def group_files(self, order: FileOrder, position: int) -> list[str]:
        """Return the files of the group at this position, in the order in which they are read.

        Raise `BadProgram` if the chief has another list of files.
        """
        if order.digest != self.digest:
            raise BadProgram(
                f"files() does not return the same list in every process; here it has "
                f"{format_count(len(self.names), 'file')}, from {self.names[0]} to "
                f"{self.names[-1]}: sort it, and do not add or remove files while the job trains",
                self._program.files,
            )
        group = order.group(position)
        count = len(self.names)
        chosen = self.names[group * count // self.groups : (group + 1) * count // self.groups]
        key = order.group_key(position)
        if key is None:
            return chosen
        return [chosen[number] for number in _permutation(len(chosen), key)]

    def read(self, file: str) -> Any:
        """Return the dataset of a file. Raise `BadProgram` for anything else or an endless one."""
        made = self._program.read(file)
        if not isinstance(made, tf.data.Dataset):
            raise BadProgram(
                f"read({file!r}) returned {type(made)}; a tf.data.Dataset is needed",
                self._program.read,
            )
        if int(made.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise BadProgram(
                f"read({file!r}) returned a dataset without an end: leave out repeat(), because "
                "Weir reads each file once an epoch",
                self._program.read,
            )
        return made

    def first_examples(self, count: int) -> Any:
        """Return the dataset of the first examples of the first files."""
        dataset = self.read(self.names[0])
        for file in self.names[1:FILES_OF_GROUP]:
            dataset = dataset.concatenate(self.read(file))
        return dataset.take(count)

    def group_dataset(self, order: FileOrder, start: int, stop: int) -> Any:
        """Return the dataset of the examples at these positions, which lie in one group.

        A stop at the end of the group means all examples to the end of its files.
        """
        files = self.group_files(order, start)
        dataset = self.read(files[0])
        for file in files[1:]:
            dataset = dataset.concatenate(self.read(file))
        key = order.group_key(start)
        if key is not None and order.window > 1:
            seed = key % SEEDS
            dataset = dataset.shuffle(order.window, seed=seed, reshuffle_each_iteration=False)
        if start % GROUP_POSITIONS:
            dataset = dataset.skip(start % GROUP_POSITIONS)
        if stop % GROUP_POSITIONS:
            dataset = dataset.take(stop - start)
        return _in_order(dataset)


def _in_order(dataset: Any) -> Any:
    """Return the dataset with parallel parts that keep the order of their elements."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def group_count(files: int) -> int:
    """Return the number of groups into which this number of files is divided."""
    return max(min(files, MOST_GROUPS), -(-files // FILES_OF_GROUP))


def expected_examples(program: ModuleType) -> int:
    """Return the examples of an epoch according to the program's `examples()`; 0 without it."""
    if not has_function(program, "examples"):
        return 0
    count = program.examples()
    if not isinstance(count, int) or count < 1:
        raise BadProgram(
            f"examples() returned {count!r}; a whole number of at least 1 is needed, or no "
            "examples() at all",
            program.examples,
        )
    return count


def _listed_files(program: ModuleType) -> list[str]:
    made = program.files()
    if isinstance(made, str | bytes) or not isinstance(made, Iterable):
        raise BadProgram(f"files() returned {type(made)}; a list of paths is needed", program.files)
    names = [_path_text(each, program) for each in made]
    if not names:
        raise BadProgram("files() returned no file: is the path in it right?", program.files)
    twice = _first_repeated_name(names)
    if twice:
        raise BadProgram(f"files() has {twice} more than once", program.files)
    return names


def _path_text(path: Any, program: ModuleType) -> str:
    if not isinstance(path, str | os.PathLike):
        raise BadProgram(
            f"files() has {path!r}, a {type(path).__name__}; paths are needed", program.files
        )
    return os.fspath(path)


def _first_repeated_name(names: Sequence[str]) -> str:
    """Return the first name that occurs more than once; empty if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
