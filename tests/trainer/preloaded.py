"""The imports of the warm process of `warm_pods`, before it forks pods."""

import keras
import tensorflow as tf

import services.trainer.pod.service
import services.trainer.worker.chief
import services.trainer.worker.program_data
import shared.runtime.app
import tests.trainer.warm_pods

MODULES = (
    services.trainer.pod.service,
    services.trainer.worker.chief,
    services.trainer.worker.program_data,
    shared.runtime.app,
    tests.trainer.warm_pods,
)
PARTS = (keras.Model, tf.distribute.ParameterServerStrategy, tf.keras)
"""TensorFlow imports them at their first use."""
