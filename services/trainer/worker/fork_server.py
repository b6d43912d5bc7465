"""The fork server: it has imported TensorFlow and Weir's part of a child, and forks a child for
each generation.

Importing TensorFlow takes seconds of CPU, a fork milliseconds, and the children share the pages.
The process starts no TensorFlow runtime, so a fork is safe. For each child the supervisor sends one
end of a socket pair (SCM_RIGHTS).
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from services.trainer import credential_isolation
from services.trainer.worker import child
from shared.runtime import process


def main() -> None:
    """`python -m services.trainer.worker.fork_server FD ROLE`: serve until the supervisor closes
    the channel.
    """
    process.die_with_parent()
    credential_isolation.drop_ptrace()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    _import_modules_of(sys.argv[2])
    gc.freeze()  # children's garbage collection leaves the shared objects alone
    channel.sendall(b"r")
    while True:
        handles = _next_request(channel)
        if not handles:
            return
        _fork_child(socket.socket(fileno=handles[0]), channel)


def _next_request(channel: socket.socket) -> list[int]:
    """Return the next child's socket; empty when the supervisor has closed the channel or is
    gone.
    """
    try:
        return socket.recv_fds(channel, 1, 1)[1]
    except ConnectionResetError:
        return []


def _import_modules_of(role: str) -> None:
    """Import what a child of this role needs before its program."""
    if role == "ps":
        child.import_server_library()
        return
    child.import_tensorflow()
    if role == "chief":
        import services.trainer.worker.chief
    else:
        import services.trainer.worker.input_pipeline  # noqa: F401


def _fork_child(line: socket.socket, server_channel: socket.socket) -> None:
    if os.fork() == 0:
        server_channel.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process.die_with_parent()
        os._exit(child.run_child(line))
    line.close()


if __name__ == "__main__":
    main()
