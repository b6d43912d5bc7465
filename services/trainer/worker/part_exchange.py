"""The parts of an update, stored on the parameter servers until all of them are there.

Each worker stores what its part contributes to a variable on the variable's ps: a gradient times
the part's share of the examples. Then the parameter servers add up the parts, always in the order
of their numbers. Nothing else changes while parts are stored, so an update of which a part is
missing can be dropped.

The store is TensorFlow's `MapStage`: a table in the memory of a task, by key. What is small
is sent to a ps as one tensor, because each tensor costs a message.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from services.trainer.worker.packing import can_pack, join_elements, send_to, split_elements

MOST_PARTS = 4096
_numbers = itertools.count()
"""The numbers of the stores that this process has traced."""


class Part(NamedTuple):
    """A part of an update. `update`: a number that is not used again; `number`: of the part;
    `passes`: in which it is computed; `examples`: of the whole update. `rows`: the examples of each
    pass if they are cut from what is staged; empty if they are the staged passes.
    """

    update: int
    number: int
    passes: int
    examples: int
    rows: tuple[int, ...] = ()


CombineRule = Literal["sum", "first"]
"""The parts' values times their shares are added, or the first part's is taken."""


class Contribution(NamedTuple):
    """The contribution of a part to a variable: a tensor, rows of a table, or None."""

    variable: tf.Variable
    value: Any
    combine: CombineRule = "sum"


class _Packed(NamedTuple):
    """Small tensors that are stored as one. `places`: in the list of contributions; `combine`: the
    same for all.
    """

    places: tuple[int, ...]
    combine: CombineRule


class PartExchange:
    """The store of a generation's parts. Trace `store` before `take`.

    `_stored`: for each ps, what its tensors are: `_Packed`, or the place of a contribution.
    """

    def __init__(self) -> None:
        self._name = f"weir_parts_{next(_numbers)}"
        self._contributions: list[Contribution] = []
        self._stored: dict[str, list[_Packed | int]] = {}

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def store(
        self, key: tf.Tensor, contributions: Sequence[Contribution], share: tf.Tensor
    ) -> None:
        """Store the contributions of a part under this key (`part_key`). Call it in a traced part.

        `share`: the part's share of the update's examples.
        """
        self._contributions = list(contributions)
        self._stored = _group_by_ps(contributions)
        for device, stored in self._stored.items():
            values = [each for what in stored for each in self._tensors(what, share)]
            key_there, *received = send_to(device, [key, *values])
            with tf.device(device):
                tf.raw_ops.MapStage(
                    key=key_there,
                    indices=list(range(len(received))),
                    values=received,
                    dtypes=[value.dtype for value in received],
                    shared_name=self._name,
                )
                _run_independently()

    def _tensors(self, what: _Packed | int, share: tf.Tensor) -> list[tf.Tensor]:
        """Return the tensors to store, times the share where parts are added."""
        if isinstance(what, _Packed):
            together = join_elements([self._contributions[at].value for at in what.places])
            return [together if what.combine == "first" else _times(together, share)]
        contribution = self._contributions[what]
        value = contribution.value
        if isinstance(value, tf.IndexedSlices):
            return [_times(value.values, share), value.indices]
        return [value if contribution.combine == "first" else _times(value, share)]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def take(self, update: tf.Tensor, parts: int) -> list[Any]:
        """Take the parts of an update out of the store, and return the combined values of the
        contributions, in their order, each on its ps. Call it in a traced update.
        """
        combined: list[Any] = [None] * len(self._contributions)
        for device, stored in self._stored.items():
            with tf.device(device):
                found = [
                    self._take_part(stored, part_key(update, number)) for number in range(parts)
                ]
                for what, *tensors in zip(stored, *found, strict=True):
                    self._combine(what, tensors, combined)
        return combined

    def _take_part(self, stored: list[_Packed | int], key: tf.Tensor) -> list[list[tf.Tensor]]:
        """Return the tensors of a part on the current ps, for each element of `stored`."""
        dtypes_of_each = [self._dtypes(what) for what in stored]
        dtypes = list(itertools.chain.from_iterable(dtypes_of_each))
        values = tf.raw_ops.MapUnstage(
            key=key, indices=list(range(len(dtypes))), dtypes=dtypes, shared_name=self._name
        )
        _run_independently()
        left = iter(values)
        return [list(itertools.islice(left, len(each))) for each in dtypes_of_each]

    def _dtypes(self, what: _Packed | int) -> list[tf.DType]:
        if isinstance(what, _Packed):
            return [self._contributions[what.places[0]].value.dtype]
        value = self._contributions[what].value
        if isinstance(value, tf.IndexedSlices):
            return [value.values.dtype, value.indices.dtype]
        return [value.dtype]

    def _combine(
        self, what: _Packed | int, parts: Sequence[list[tf.Tensor]], combined: list[Any]
    ) -> None:
        """Write the combined values of these tensors to their places."""
        if isinstance(what, _Packed):
            values = [self._contributions[at].value for at in what.places]
            total = _combine_tensors(what.combine, parts)
            for at, piece in zip(what.places, split_elements(total, values), strict=True):
                combined[at] = piece
            return
        contribution = self._contributions[what]
        if isinstance(contribution.value, tf.IndexedSlices):
            rows, indices = zip(*parts, strict=True)
            combined[what] = tf.IndexedSlices(
                _with_shape(tf.concat(rows, 0), [None, *contribution.value.values.shape[1:]]),
                _with_shape(tf.concat(indices, 0), [None]),
                tf.constant(contribution.variable.shape.as_list(), tf.int64),
            )
        else:
            total = _combine_tensors(contribution.combine, parts)
            combined[what] = _with_shape(total, contribution.value.shape)

    def assign_states(self, first: int, values: Sequence[Any]) -> None:
        """Assign these combined values to the variables of the contributions from `first` on."""
        contributions = self._contributions[first : first + len(values)]
        for contribution, value in zip(contributions, values, strict=True):
            with tf.device(contribution.variable.device):
                contribution.variable.assign(value, read_value=False)

    def clear(self) -> None:
        """Drop all stored parts. Call it in a traced function, after `store` is traced."""
        for device, stored in self._stored.items():
            dtypes = [dtype for what in stored for dtype in self._dtypes(what)]
            with tf.device(device):
                tf.raw_ops.MapClear(dtypes=dtypes, shared_name=self._name)
                _run_independently()


def part_key(update: tf.Tensor, number: int) -> tf.Tensor:
    return update * MOST_PARTS + number


def _group_by_ps(contributions: Sequence[Contribution]) -> dict[str, list[_Packed | int]]:
    """Return what is stored on each ps: small tensors of the same type and rule together, unless they
    are there already.
    """
    packed: dict[tuple[str, tf.DType, CombineRule], list[int]] = {}
    stored: dict[str, list[_Packed | int]] = {}
    for at, (variable, value, combine) in enumerate(contributions):
        if value is None:
            continue
        on_ps = stored.setdefault(variable.device, [])
        is_there = isinstance(value, tf.Tensor) and value.device == variable.device
        if isinstance(value, tf.Tensor) and can_pack(value) and not is_there:
            packed.setdefault((variable.device, value.dtype, combine), []).append(at)
        else:
            on_ps.append(at)
    for (device, _, combine), places in packed.items():
        stored[device].append(_Packed(tuple(places), combine))
    return stored


def _combine_tensors(combine: CombineRule, parts: Sequence[list[tf.Tensor]]) -> tf.Tensor:
    """Return the sum over the parts, each of which has one tensor, or the first part's tensor."""
    tensors = [tensor for (tensor,) in parts]
    return tensors[0] if combine == "first" else tf.add_n(tensors)


def _times(value: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return value * tf.cast(share, value.dtype)


def _with_shape(value: tf.Tensor, shape: Any) -> tf.Tensor:
    value.set_shape(shape)
    return value


def _run_independently() -> None:
    """Let the last operation run without an order to other ones that have an effect.

    TensorFlow would order the stores of different ps, which costs a message for each.
    """
    graph = tf.compat.v1.get_default_graph()
    manager = graph.experimental_acd_manager
    if manager is not None:
        manager.run_independently(graph.get_operations()[-1])
