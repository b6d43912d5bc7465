"""Tests of divided tables within one process: lookups, and updates by each optimizer, beside Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.trainer.program import BadProgram
from services.trainer.worker import optimizers, part_step, row_updates, table_division
from services.trainer.worker.sharded_table import ShardedTable, new_shards
from services.trainer.worker.table_division import divide_tables

ROWS, WIDTH, PS = 50, 4, 3
OPTIMIZERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "sgd": (keras.optimizers.SGD, {}),
    "momentum": (keras.optimizers.SGD, {"momentum": 0.9}),
    "nesterov": (keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (keras.optimizers.Adagrad, {}),
    "rmsprop": (keras.optimizers.RMSprop, {"centered": True, "momentum": 0.5}),
    "adam": (keras.optimizers.Adam, {}),
    "amsgrad": (keras.optimizers.Adam, {"amsgrad": True}),
    "adamw": (keras.optimizers.AdamW, {"weight_decay": 0.1}),
    "nadam": (keras.optimizers.Nadam, {}),
    "adamax": (keras.optimizers.Adamax, {}),
    "ftrl": (keras.optimizers.Ftrl, {}),
    "adadelta": (keras.optimizers.Adadelta, {}),
    "lion": (keras.optimizers.Lion, {}),
    "clipnorm": (keras.optimizers.Adam, {"clipnorm": 0.01}),
    "global_clipnorm": (keras.optimizers.Adam, {"global_clipnorm": 0.01}),
    "clipvalue": (keras.optimizers.SGD, {"clipvalue": 0.001}),
}


@pytest.fixture(autouse=True)
def divide_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_division, "DIVIDED_BYTES", ROWS * WIDTH * 4)


def net(**options: Any) -> Any:
    ids = keras.Input((3,), dtype="int32")
    rows = keras.layers.Embedding(ROWS, WIDTH, name="table", **options)(ids)
    return keras.Model(ids, keras.layers.Dense(1, name="head")(keras.layers.Flatten()(rows)))


def divided(**options: Any) -> Any:
    with divide_tables(partial(new_shards, ps=PS)):
        return net(**options)


def table_of(model: Any) -> ShardedTable:
    table = model.get_layer("table").weights[0]
    assert isinstance(table, ShardedTable)
    return table


def rows_of(model: Any) -> Any:
    return np.concatenate([shard.variable.numpy() for shard in table_of(model).shards])


def whole_copy(model: Any) -> Any:
    """Return a plain model with the same weights."""
    copy = net()
    copy.get_layer("table").set_weights([rows_of(model)])
    copy.get_layer("head").set_weights(model.get_layer("head").get_weights())
    return copy


def gradients(model: Any, ids: Any, labels: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(ids) - labels) ** 2)
    return list(tape.gradient(loss, model.trainable_variables))


@pytest.mark.parametrize("ps", [1, PS])
@pytest.mark.parametrize("wrong", [ROWS, ROWS + 7, -ROWS - 1])
def test_an_id_without_a_row_is_an_error_that_names_the_table(ps: int, wrong: int) -> None:
    with divide_tables(partial(new_shards, ps=ps)):
        model = net()
    ids = np.array([[0, wrong, ROWS - 1]], "int32")

    with pytest.raises(tf.errors.InvalidArgumentError) as failure:
        tf.function(model)(ids)
    assert f"ids must be from 0 to {ROWS - 1}, the rows of table/embeddings" in str(failure.value)
    assert str(wrong if wrong > 0 else wrong + ROWS) in str(failure.value)


def make_update(model: Any, optimizer: Any) -> Any:
    @tf.function  # type: ignore[untyped-decorator]
    def update(ids: Any, labels: Any) -> None:
        found = gradients(model, ids, labels)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))

    return update


def batches(count: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches that have every row three times."""
    random = np.random.default_rng(0)
    for _ in range(count):
        ids = np.stack([random.permutation(ROWS) for _ in range(3)], 1).astype("int32")
        yield tf.constant(ids), tf.constant(random.normal(size=(ROWS, 1)), tf.float32)


def test_a_lookup_returns_the_rows() -> None:
    model = divided()
    ids = np.random.default_rng(1).integers(0, ROWS, (8, 3))
    assert np.allclose(model(ids), whole_copy(model)(ids))
    assert len(table_of(model).shards) == PS


def ragged_ids() -> Any:
    return tf.ragged.constant([[3, 49], [], [-1, 3, 3]])


def sparse_ids() -> Any:
    return tf.sparse.SparseTensor([[0, 0], [1, 1]], [7, -2], [2, 3])


@pytest.mark.parametrize(
    "ids",
    [
        lambda: tf.constant([[0, -1, -ROWS]]),
        lambda: tf.constant([], tf.int32),
        ragged_ids,
        sparse_ids,
    ],
    ids=["negative", "none", "ragged", "sparse"],
)
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_a_lookup_returns_what_keras_returns_for_the_same_ids(
    ids: Callable[[], Any], dtype: str
) -> None:
    stock = keras.layers.Embedding(ROWS, WIDTH, dtype=dtype)
    stock.build()
    with divide_tables(partial(new_shards, ps=PS)):
        layer = keras.layers.Embedding(ROWS, WIDTH, dtype=dtype, weights=stock.get_weights())
        layer.build()
    expected, found = stock(ids()), layer(ids())
    assert isinstance(layer.embeddings, ShardedTable)
    assert found.dtype == expected.dtype and type(found) is type(expected)
    assert found.shape.as_list() == expected.shape.as_list()
    flat = [
        each.flat_values if isinstance(each, tf.RaggedTensor) else each
        for each in (found, expected)
    ]
    assert np.array_equal(*flat)


def two_inputs() -> Any:
    inputs = [keras.Input((), dtype="int32", name=name) for name in ("left", "right")]
    table = keras.layers.Embedding(ROWS, WIDTH, name="table")
    rows = keras.layers.Multiply()([table(each) for each in inputs])
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(rows))


def test_a_layer_that_is_shared_between_inputs_has_the_sum_of_their_gradients() -> None:
    with divide_tables(partial(new_shards, ps=PS)):
        model = two_inputs()
    dense = two_inputs()
    dense.get_layer("table").set_weights([rows_of(model)])
    dense.get_layer("head").set_weights(model.get_layer("head").get_weights())
    ids = [tf.constant([1, 7, 7]), tf.constant([7, 1, 30])]
    labels = tf.constant([[1.0], [2.0], [3.0]])
    for each in (model, dense):
        optimizer = keras.optimizers.SGD(0.5)
        optimizers.build_optimizer(optimizer, each.trainable_variables)
        make_update(each, optimizer)(ids, labels)
    assert np.allclose(rows_of(model), dense.get_layer("table").get_weights()[0], atol=1e-6)


def test_a_frozen_table_is_divided_and_has_no_slots() -> None:
    model = divided(trainable=False)
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizers.build_optimizer(optimizer, model.trainable_variables)
    before = rows_of(model)
    ((ids, labels),) = batches(1)
    make_update(model, optimizer)(ids, labels)
    assert np.array_equal(rows_of(model), before)
    assert not [each for each in optimizer.variables if isinstance(each, ShardedTable)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_of_all_rows_equals_the_dense_form(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = divided()
    dense = whole_copy(model)
    optimizer, reference = kind(0.1, **options), kind(0.1, **options)
    optimizers.build_optimizer(optimizer, model.trainable_variables)
    reference.build(dense.trainable_variables)
    update = make_update(model, optimizer)

    for ids, labels in batches(3):
        update(ids, labels)
        found = [tf.convert_to_tensor(each) for each in gradients(dense, ids, labels)]
        reference.apply_gradients(zip(found, dense.trainable_variables, strict=True))

    assert np.allclose(rows_of(model), dense.get_layer("table").get_weights()[0], atol=2e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_without_a_gradient_stay(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = divided()
    optimizer = kind(0.1, **options)
    optimizers.build_optimizer(optimizer, model.trainable_variables)
    update = make_update(model, optimizer)
    ((ids, labels),) = batches(1)
    update(ids, labels)
    before = rows_of(model)

    update(ids[:2], labels[:2])

    used = np.unique(ids[:2])
    unused = np.setdiff1d(np.arange(ROWS), used)
    assert np.array_equal(rows_of(model)[unused], before[unused])
    assert not np.isclose(rows_of(model)[used], before[used], rtol=0, atol=1e-9).all()


def gradient_of_two_lookups() -> tf.IndexedSlices:
    """Return a gradient in which some rows are used twice."""
    random = np.random.default_rng(3)
    ids = np.concatenate([random.permutation(ROWS)[:30], random.permutation(ROWS)[:30]])
    values = random.normal(size=(60, WIDTH)).astype("float32")
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(ids), tf.constant([ROWS, WIDTH], tf.int64)
    )


def test_a_worker_contributes_rows_to_the_ps_that_have_them() -> None:
    table = table_of(divided())
    contributions = part_step._contributions(table, gradient_of_two_lookups())
    assert [each.variable for each in contributions] == [shard.variable for shard in table.shards]
    for shard, each in zip(table.shards, contributions, strict=True):
        assert len(each.value.indices) > 0 and max(each.value.indices) < len(shard.rows)


def test_the_joined_gradient_of_a_table_has_the_same_bits_on_any_number_of_ps() -> None:
    found = []
    for ps in (1, 2, 7):
        with divide_tables(partial(new_shards, ps=ps)):
            table = table_of(net())
        shards = row_updates.rows_of_shards(table, gradient_of_two_lookups())
        found.append(row_updates.join_shards(table, shards))
    dense = tf.convert_to_tensor(gradient_of_two_lookups())
    for each in found:
        assert np.array_equal(each.values, found[0].values)
        assert np.array_equal(each.indices, found[0].indices)
        assert np.allclose(tf.convert_to_tensor(each), dense)


def test_averages_of_rows_become_the_weights() -> None:
    model = divided()
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.75)
    optimizers.build_optimizer(optimizer, model.trainable_variables)
    first = rows_of(model)
    ((ids, labels),) = batches(1)
    make_update(model, optimizer)(ids, labels)
    updated = rows_of(model)

    optimizers.finalize_weights(optimizer)

    assert np.allclose(rows_of(model), 0.75 * first + 0.25 * updated, atol=1e-6)


def test_a_regularizer_counts_the_rows_that_were_looked_up() -> None:
    model = divided(embeddings_regularizer=keras.regularizers.L2(0.5))
    ids = tf.constant([[1, 1, 7]])
    model(ids)
    assert float(model.losses[0]) == pytest.approx(0.5 * np.sum(rows_of(model)[[1, 7]] ** 2))


@pytest.mark.parametrize("name", ["Lamb", "Adafactor", "Muon"])
def test_an_optimizer_that_combines_rows_is_refused(name: str) -> None:
    model = divided()
    with pytest.raises(BadProgram, match=f"{name} cannot train table/embeddings"):
        optimizers.build_optimizer(getattr(keras.optimizers, name)(0.1), model.trainable_variables)


def test_a_scale_by_which_keras_divides_gradients_is_refused() -> None:
    optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=8.0)
    with pytest.raises(BadProgram, match=r"use keras\.optimizers\.LossScaleOptimizer"):
        optimizers.build_optimizer(optimizer, divided().trainable_variables)


def test_a_use_of_the_whole_table_is_refused() -> None:
    table = table_of(divided())
    with pytest.raises(BadProgram, match=r"look rows up with tf\.gather"):
        tf.matmul(tf.ones([1, ROWS]), table)


@pytest.mark.parametrize(
    "options",
    [
        {"embeddings_constraint": "non_neg"},
        {"embeddings_initializer": "orthogonal"},
        {"lora_rank": 2},
    ],
)
def test_some_tables_stay_whole(options: dict[str, Any]) -> None:
    assert not isinstance(divided(**options).get_layer("table").weights[0], ShardedTable)


def test_given_weights_are_divided() -> None:
    given = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype("float32")
    assert np.array_equal(rows_of(divided(weights=[given])), given)


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [
        ("uniform", 0.1 / 12**0.5),
        ("glorot_uniform", (2 / (ROWS + WIDTH)) ** 0.5),
        ("he_normal", (2 / ROWS) ** 0.5),
    ],
)
def test_initial_values_have_the_distribution_of_the_initializer(
    initializer: str, deviation: float
) -> None:
    keras.utils.set_random_seed(5)  # two of 200 random values are equal in one of 400 runs
    found = rows_of(divided(embeddings_initializer=initializer))
    assert len(np.unique(found)) == found.size
    assert np.std(found) == pytest.approx(deviation, rel=0.25)


@pytest.mark.parametrize("initializer", ["uniform", "glorot_uniform", "zeros"])
def test_initial_values_do_not_depend_on_the_number_of_ps(initializer: str) -> None:
    found = []
    for ps in (1, 2, 7):
        keras.utils.set_random_seed(5)
        with divide_tables(partial(new_shards, ps=ps)):
            found.append(rows_of(net(embeddings_initializer=initializer)))
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


class OwnTable(keras.layers.Layer):
    """A layer of a program that looks rows up itself."""

    row_lookup_weights = ("rows",)

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(shape=(ROWS, WIDTH), initializer="uniform", name="rows")

    def call(self, ids: Any) -> Any:
        return tf.gather(self.rows, ids)


def test_a_layer_of_the_program_may_ask_for_a_divided_table() -> None:
    with divide_tables(partial(new_shards, ps=PS)):
        ids = keras.Input((3,), dtype="int32")
        model = keras.Model(ids, OwnTable()(ids))
    found = model(tf.constant([[0, 49, 20]]))
    table = model.trainable_variables[0]
    assert isinstance(table, ShardedTable)
    rows = np.concatenate([shard.variable.numpy() for shard in table.shards])
    assert np.array_equal(found[0], rows[[0, 49, 20]])
