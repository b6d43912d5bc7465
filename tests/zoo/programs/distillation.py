"""Distillation: a small student learns from a teacher's outputs, because its labels are bad.

What it shows: a model that is not trained beside one that is; each batch passes through both. Nine
of ten labels are random; the teacher was trained on correct ones. From the labels alone the student
learns little.

After "Distilling the Knowledge in a Neural Network" (Hinton, Vinyals and Dean, 2015).
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

WARMTH, BAD = 2.0, 0.9  # temperature of the outputs; share of random labels

_random = np.random.default_rng(0)
_digits = load_digits()
_order = _random.permutation(len(_digits.target))
_images = (_digits.data[_order] / 16.0).astype("float32")
_labels = _digits.target[_order].astype("int64")
_TRAINED_ON = len(_labels) * 4 // 5
_taught = LogisticRegression(max_iter=300).fit(_images[:_TRAINED_ON], _labels[:_TRAINED_ON])
_noisy = np.where(
    _random.random(len(_labels)) < BAD, _random.integers(0, 10, len(_labels)), _labels
)


def model():
    layers = keras.layers
    student = keras.Sequential(
        [layers.Input((64,)), layers.Dense(16, activation="relu"), layers.Dense(10)]
    )
    teacher = keras.Sequential([layers.Input((64,)), layers.Dense(10)])
    teacher.set_weights([_taught.coef_.T, _taught.intercept_])
    teacher.trainable = False
    return {"student": student, "teacher": teacher}


def optimizer():
    return {"student": keras.optimizers.Adam(3e-3)}


def train_step(models, optimizers, batch, *, feature=True):
    images, labels = batch
    student = models["student"]
    taught = tf.nn.softmax(models["teacher"](images) / WARMTH)
    with tf.GradientTape() as tape:
        logits = student(images, training=True)
        if feature:
            each = keras.losses.categorical_crossentropy(taught, logits / WARMTH, from_logits=True)
        else:
            each = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        mean = tf.reduce_mean(each)
    weights = student.trainable_variables
    optimizers["student"].apply_gradients(zip(tape.gradient(mean, weights), weights, strict=True))
    return {"loss": mean}


def outputs(models, inputs):
    return models["student"](inputs)


def examples():
    return _TRAINED_ON


def dataset(numbers):
    return tf.data.Dataset.from_tensor_slices((_images[numbers], _noisy[numbers]))


def evaluation():
    return tf.data.Dataset.from_tensor_slices((_images[_TRAINED_ON:], _labels[_TRAINED_ON:]))


def metrics():
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
