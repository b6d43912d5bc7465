"""Q-learning from a replay file: steps of a robot that moved at random in a maze.

What it shows: a target net that follows the trained net a little with every step, and elements of
four parts. The metric is the mean error of the value of a place, compared with dynamic programming;
without the values of the target net, only the last step before the exit has a value.

After "Human-level control through deep reinforcement learning" (Mnih et al., 2015).
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

MAZE = ("......", ".##.#.", "...#..", ".#...#", ".#.#..", "...#.E")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
DISCOUNT, FOLLOW = 0.9, 0.02
SEEN = 8_000

_places = [(y, x) for y, row in enumerate(MAZE) for x, cell in enumerate(row) if cell != "#"]
_index = {place: number for number, place in enumerate(_places)}
_EXIT = next(number for number, (y, x) in enumerate(_places) if MAZE[y][x] == "E")


def _after_move(number, move):
    y, x = _places[number]
    return _index.get((y + MOVES[move][0], x + MOVES[move][1]), number)


_next = np.array([[_after_move(n, move) for move in range(4)] for n in range(len(_places))])


def write_data(folder):
    """Write the replay file: places, moves, rewards and next places."""
    random = np.random.default_rng(5)
    places = random.integers(0, len(_places), SEEN)
    moves = random.integers(0, 4, SEEN)
    after = _next[places, moves]
    rewards = (after == _EXIT).astype("float32")
    np.savez(Path(folder) / "replay.npz", place=places, move=moves, reward=rewards, after=after)


def model():
    online, target = _values(), _values()
    target.set_weights(online.get_weights())
    target.trainable = False
    return {"online": online, "target": target}


def _values():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((len(_places),)),
            layers.Dense(64, activation="relu"),
            layers.Dense(4),
        ]
    )


def optimizer():
    return {"online": keras.optimizers.Adam(2e-3)}


def train_step(models, optimizers, batch, *, feature=True):
    place, move, reward, after = batch
    online, target = models["online"], models["target"]
    goes_on = tf.cast(after != _EXIT, tf.float32) if feature else 0.0
    best = tf.reduce_max(target(tf.one_hot(after, len(_places))), axis=1)
    aim = reward + DISCOUNT * goes_on * best
    with tf.GradientTape() as tape:
        values = tf.gather(online(tf.one_hot(place, len(_places))), move, batch_dims=1)
        mean = tf.reduce_mean((values - aim) ** 2)
    weights = online.trainable_variables
    optimizers["online"].apply_gradients(zip(tape.gradient(mean, weights), weights, strict=True))
    for follower, leader in zip(target.variables, online.variables, strict=True):
        follower.assign_add(FOLLOW * (leader - follower))
    return {"loss": mean}


def outputs(models, inputs):
    return tf.reduce_max(models["online"](inputs), axis=1, keepdims=True)


def examples():
    return SEEN


def dataset(numbers, *, folder):
    with np.load(Path(folder) / "replay.npz") as seen:
        parts = tuple(seen[name][numbers] for name in ("place", "move", "reward", "after"))
    return tf.data.Dataset.from_tensor_slices(parts)


def evaluation():
    """Return every place but the exit, and its value by dynamic programming."""
    values = np.zeros(len(_places), "float32")
    for _ in range(len(_places)):
        goes_on = np.where(_next == _EXIT, 1.0, DISCOUNT * values[_next])
        values = goes_on.max(axis=1).astype("float32")
    others = [number for number in range(len(_places)) if number != _EXIT]
    seen = np.eye(len(_places), dtype="float32")[others]
    return tf.data.Dataset.from_tensor_slices((seen, values[others, None]))


def metrics():
    return [keras.metrics.MeanAbsoluteError(name="value_error")]
