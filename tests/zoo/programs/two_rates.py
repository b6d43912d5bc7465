"""Fine-tuning: a net that is already trained learns slowly, and the head on it learns fast.

What it shows: two models with two optimizers, of two learning rates. The net's weights are the
principal components of all of scikit-learn's digits; the head is trained with the classes of 300 of
them. At the rate of the head, the net forgets what it learned.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

TRAINED_ON, COMPONENTS = 300, 32
SLOW, FAST = 1e-3, 3.0

_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.data[_order] / 16.0).astype("float32")
_labels = _digits.target[_order].astype("int64")
_mean = _images.mean(axis=0)
_components = np.linalg.svd(_images - _mean, full_matrices=False)[2][:COMPONENTS].T


def model():
    layers = keras.layers
    body = keras.Sequential([layers.Input((64,)), layers.Dense(COMPONENTS, activation="tanh")])
    body.set_weights([_components, -_mean @ _components])
    head = keras.Sequential([layers.Input((COMPONENTS,)), layers.Dense(10)])
    return {"body": body, "head": head}


def optimizer(*, feature=True):
    return {
        "body": keras.optimizers.SGD(SLOW if feature else FAST),
        "head": keras.optimizers.SGD(FAST),
    }


def train_step(models, optimizers, batch):
    images, labels = batch
    with tf.GradientTape(persistent=True) as tape:
        logits = outputs(models, images)
        each = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        mean = tf.reduce_mean(each)
    for name, part in models.items():
        weights = part.trainable_variables
        optimizers[name].apply_gradients(zip(tape.gradient(mean, weights), weights, strict=True))
    return {"loss": mean}


def outputs(models, inputs):
    return models["head"](models["body"](inputs))


def examples():
    return TRAINED_ON


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices((_images[numbers], _labels[numbers]))


def evaluation():
    return dataset(np.arange(TRAINED_ON, len(_labels)))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
