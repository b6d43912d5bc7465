"""A generative adversarial net: noise becomes points of an arc that is away from the origin.

What it shows: two models with two optimizers that are trained against each other in one step, and
elements without a label. The metric is the energy distance of generated points to real ones, which
is 0 if both have the same distribution. Without the updates of the discriminator, nothing is
learned.

After "Generative Adversarial Nets" (Goodfellow et al., 2014), and "Energy statistics" (Szekely and
Rizzo, 2013).
"""

import keras
import numpy as np
import tensorflow as tf

TRAINED_ON, EVALUATED_ON, NOISE, WIDTH = 8_192, 2_048, 4, 32
STEPS = 30 * TRAINED_ON // 128

_random = np.random.default_rng(11)
_angles = _random.uniform(0.0, np.pi, TRAINED_ON + EVALUATED_ON)
_points = np.stack([2.0 + np.cos(_angles), 1.0 + np.sin(_angles)], axis=1)
_points = (_points + _random.normal(0.0, 0.1, _points.shape)).astype("float32")
_noise = _random.normal(size=(EVALUATED_ON, NOISE)).astype("float32")


class EnergyDistance(keras.metrics.Mean):
    """The mean, over batches, of the energy distance of generated points to real ones."""

    def update_state(self, real, generated, sample_weight=None):
        between = _mean_distance(real, generated)
        within = _mean_distance(real, real) + _mean_distance(generated, generated)
        super().update_state(2.0 * between - within)


def _mean_distance(some, others):
    apart = some[:, None, :] - others[None, :, :]
    return tf.reduce_mean(tf.sqrt(tf.reduce_sum(apart**2, axis=-1) + 1e-12))


def model():
    layers = keras.layers
    generator = keras.Sequential(
        [
            layers.Input((NOISE,)),
            layers.Dense(WIDTH, activation="relu"),
            layers.Dense(WIDTH, activation="relu"),
            layers.Dense(2),
        ]
    )
    discriminator = keras.Sequential(
        [
            layers.Input((2,)),
            layers.Dense(WIDTH, activation="leaky_relu"),
            layers.Dense(WIDTH, activation="leaky_relu"),
            layers.Dense(1),
        ]
    )
    return {"generator": generator, "discriminator": discriminator}


def optimizer():
    """The rates fall to zero: two nets that are trained against each other turn around their goal,
    and an end at a constant rate shows where on the way they were.
    """
    decay = keras.optimizers.schedules.CosineDecay
    return {
        "generator": keras.optimizers.Adam(decay(1e-3, STEPS), beta_1=0.5),
        "discriminator": keras.optimizers.Adam(decay(2e-3, STEPS), beta_1=0.5),
    }


def train_step(models, optimizers, batch, *, feature=True):
    generator, discriminator = models["generator"], models["discriminator"]
    noise = tf.random.normal((tf.shape(batch)[0], NOISE))
    with tf.GradientTape() as for_generator, tf.GradientTape() as for_discriminator:
        generated = generator(noise, training=True)
        found_real = discriminator(batch, training=True)
        found_generated = discriminator(generated, training=True)
        fooled = _mean_entropy(1.0, found_generated)
        told_apart = _mean_entropy(0.9, found_real) + _mean_entropy(0.0, found_generated)
    _learn(optimizers["generator"], generator, for_generator, fooled)
    if feature:
        _learn(optimizers["discriminator"], discriminator, for_discriminator, told_apart)
    return {"generator_loss": fooled, "discriminator_loss": told_apart}


def _mean_entropy(label, logits):
    labels = tf.fill(tf.shape(logits), label)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def _learn(optimizer, part, tape, value):
    weights = part.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))


def outputs(models, inputs):
    return models["generator"](inputs)


def examples():
    return TRAINED_ON


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices(_points[numbers])


def evaluation():
    return tf.data.Dataset.from_tensor_slices((_noise, _points[TRAINED_ON:]))


def metrics():
    return [EnergyDistance(name="energy_distance")]
