"""A variational autoencoder of scikit-learn's digits: a model that computes its loss itself.

What it shows: a compiled model with its own `compute_loss`, and elements without a label. The
metric is the mean squared error of the reconstruction of an image; without the reconstruction's
part of the loss, all reconstructions become the same.

After "Auto-Encoding Variational Bayes" (Kingma and Welling, 2014).
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

CODE, DIVERGENCE = 8, 0.003

_digits = load_digits()
_order = np.random.default_rng(0).permutation(len(_digits.target))
_images = (_digits.data[_order] / 16.0).astype("float32")
_TRAINED_ON = len(_images) * 4 // 5


class Autoencoder(keras.Model):
    """Encode an image as a distribution of codes, and decode one of them."""

    def __init__(self, reconstruction):
        super().__init__()
        layers = keras.layers
        self.reconstruction = reconstruction
        self.encoder = keras.Sequential(
            [layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(2 * CODE)]
        )
        self.decoder = keras.Sequential(
            [layers.Input((CODE,)), layers.Dense(64, activation="relu"), layers.Dense(64)]
        )

    def call(self, images, training=False):
        mean, logarithm = tf.split(self.encoder(images), 2, axis=1)
        noise = tf.random.normal(tf.shape(mean)) if training else 0.0
        return {
            "image": self.decoder(mean + noise * tf.exp(0.5 * logarithm)),
            "mean": mean,
            "logarithm": logarithm,
        }

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        mean, logarithm = y_pred["mean"], y_pred["logarithm"]
        error = tf.reduce_mean((x - y_pred["image"]) ** 2)
        spread = tf.exp(logarithm) + mean**2 - 1.0 - logarithm
        return self.reconstruction * error + DIVERGENCE * 0.5 * tf.reduce_mean(spread)


def model(*, feature=True):
    net = Autoencoder(1.0 if feature else 0.0)
    net.compile(optimizer=optimizer())
    return net


def optimizer():
    return keras.optimizers.Adam(3e-3)


def examples():
    return _TRAINED_ON


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices((_images[numbers], _images[numbers]))


def evaluation():
    images = _images[_TRAINED_ON:]
    return tf.data.Dataset.from_tensor_slices((images, {"image": images}))


def metrics():
    return {"image": [keras.metrics.MeanSquaredError(name="error")]}
