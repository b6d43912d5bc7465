# mypy: ignore-errors
# A program as people write it: without types.
"""A convolutional net with batch normalisation that names the shape in a noisy image.

The images are GENERATED: a circle, a square, a triangle, a cross, a ring or a bar, of any size and
place, in noise. `seed`: of the initial weights, dropout and nothing else.
"""

import keras
import numpy as np
import tensorflow as tf

SIDE, CLASSES, CHANNELS = 20, 6, 16
TRAINED_ON, EVALUATED_ON = 6_000, 10_240
BATCH, EPOCHS, RATE, NOISE = 64, 8, 0.1, 0.42
STEPS = EPOCHS * -(-TRAINED_ON // BATCH)


def _draw(count, random):
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    kinds = random.integers(0, CLASSES, count)
    radius = random.uniform(4, 8, (count, 1, 1))
    y = rows - random.uniform(8, SIDE - 8, (count, 1, 1))
    x = columns - random.uniform(8, SIDE - 8, (count, 1, 1))
    distance = np.hypot(x, y)
    square = np.maximum(abs(x), abs(y)) <= radius * 0.9
    drawn = [
        distance <= radius,
        square,
        (y >= -radius) & (abs(x) <= (y + radius) / 2) & (y <= radius),
        ((abs(x) <= 1.5) | (abs(y) <= 1.5)) & square,
        (distance <= radius) & (distance >= radius - 2.5),
        (abs(x) <= 1.5) & (abs(y) <= radius),
    ]
    images = np.choose(kinds[:, None, None], drawn).astype("float32")
    noise = random.normal(0.0, NOISE, images.shape).astype("float32")
    return (images + noise)[..., None], kinds.astype("int64")


_images, _labels = _draw(TRAINED_ON + EVALUATED_ON, np.random.default_rng(11))


def model(seed=0):
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    net = keras.Sequential([layers.Input((SIDE, SIDE, 1))])
    for channels, strides in ((CHANNELS, 1), (2 * CHANNELS, 2), (2 * CHANNELS, 2)):
        net.add(layers.Conv2D(channels, 3, strides, padding="same", use_bias=False))
        net.add(layers.BatchNormalization(momentum=0.9))
        net.add(layers.Activation("relu"))
    net.add(layers.GlobalAveragePooling2D())
    net.add(layers.Dropout(0.2))
    net.add(layers.Dense(CLASSES))
    return net


def optimizer():
    rate = keras.optimizers.schedules.CosineDecay(RATE, STEPS)
    return keras.optimizers.SGD(rate, momentum=0.9)


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def examples():
    return TRAINED_ON


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices((_images[numbers], _labels[numbers]))


def evaluation():
    return dataset(np.arange(TRAINED_ON, TRAINED_ON + EVALUATED_ON))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
