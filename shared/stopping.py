"""SIGTERM while a service imports: the time before its event loop can listen to signals. Edge.

The kernel gives process 1 of a container no signal that it has not asked for. Imports take a
second, on a busy machine ten; a SIGTERM that came meanwhile was lost, and the kubelet killed the
service when its grace had passed.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_when_told(code: int = 0) -> None:
    """End this process at once on SIGTERM or SIGINT, until `app.run` listens itself. Call it before
    heavy imports.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
