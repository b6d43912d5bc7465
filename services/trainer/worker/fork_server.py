"""The nursery: a process that has imported TensorFlow and nothing more, and forks a child for each
generation.

Importing TensorFlow takes seconds of CPU, a fork milliseconds; and the children share the pages. It
starts no TensorFlow runtime of its own, so a fork is safe. The supervisor sends one end of a socket
pair (SCM_RIGHTS) for each child that it wants.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from services.trainer import credential_isolation
from services.trainer.worker import child
from shared.runtime import process


def main() -> None:
    """`python -m services.trainer.worker.fork_server FD ROLE`: serve until the supervisor closes the
    channel.
    """
    process.die_with_parent()
    credential_isolation.blindfold()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import(sys.argv[2])
    channel.sendall(b"r")
    while True:
        handles = _next(channel)
        if not handles:
            return
        _bear(socket.socket(fileno=handles[0]), channel)


def _next(channel: socket.socket) -> list[int]:
    """The next child's socket; none when the supervisor has closed or is gone."""
    try:
        return socket.recv_fds(channel, 1, 1)[1]
    except ConnectionResetError:
        return []


def _import(role: str) -> None:
    if role == "ps":
        child.imported()
        return
    import keras
    import tensorflow as tf

    _ = (keras.Model, tf.distribute.ParameterServerStrategy, tf.keras)


def _bear(line: socket.socket, nursery: socket.socket) -> None:
    if os.fork() == 0:
        nursery.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process.die_with_parent()
        os._exit(child.run(line))
    line.close()


if __name__ == "__main__":
    main()
