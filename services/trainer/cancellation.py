"""TensorFlow's cancellation managers, one per thread. Works around a fault of TensorFlow.

`ClusterCoordinator` runs each step inside a `CancellationManagerContext`. TensorFlow keeps the
active manager in a module variable that all threads share
(`tensorflow/python/eager/cancellation.py`, seen in 2.21). So a function that another thread calls
meanwhile, such as the write of a checkpoint, gets the manager of the steps. If that function then
fails, because the disk is full for example, TensorFlow cancels everything under its manager: all
steps, now and later.
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.python.eager import cancellation

_active = threading.local()


def keep_per_thread() -> None:
    """Make the active cancellation manager a value of each thread. Calling this twice changes
    nothing more.
    """
    cancellation.context = _active_manager
    cancellation.CancellationManagerContext.__enter__ = _enter
    cancellation.CancellationManagerContext.__exit__ = _exit


def _active_manager() -> Any:
    return getattr(_active, "manager", None)


def _enter(context: Any) -> None:
    _active.manager = context._cancellation_manager


def _exit(context: Any, *_: object) -> None:
    _active.manager = None
