"""One task of one generation, in a process of its own; the only process that runs TensorFlow.

It is born by a fork of the pod's nursery, which has imported TensorFlow already, or freshly
(`python -m services.trainer.worker.child FD`). It speaks with its supervisor over a socket, and dies with
it.

A TensorFlow server without the rest of TensorFlow.

A ps runs no Python of the program: all it does happens in TensorFlow's C++ library. Importing only
what starts a server takes 0.3 s of CPU instead of 2.4 s, and 370 MB instead of 650 MB (TensorFlow
2.21): 2 s on a fifth of a core instead of 12 s. `import tensorflow` runs the package's `__init__`,
so an empty package of that name stands in its place. Where that does not work (another version),
the whole is imported.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import queue
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from services.trainer import credential_isolation
from services.trainer.protocol import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_PEER_LOST,
    ORDERS,
    Assignment,
    Begin,
    Born,
    Failed,
    Line,
    Prepared,
    line,
)
from services.trainer.worker import failure_cause
from services.trainer.worker.watchdog import Watchdog
from shared.runtime import process


def run(channel: socket.socket) -> int:
    """Live as the assignment says that comes first on the channel; the exit code."""
    lines = channel.makefile("rb")
    assignment = msgspec.json.decode(lines.readline(), type=Assignment)
    lower_priority(assignment.nice)
    say = _Mouth(channel)
    say(Born(pid=os.getpid()))
    faulthandler.enable(channel.fileno(), all_threads=False)
    try:
        return _live(assignment, say, lines)
    except BaseException as error:
        return _explain(error, say, assignment.program)


PEER_WORDS = ("Could not start gRPC server", "some remote workers have been restarted")


class _Mouth:
    """Says lines, one at a time, from any thread. `handle` is for what must be said without
    Python.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self.handle = channel.fileno()

    def __call__(self, item: Line) -> None:
        with self._lock:
            self._channel.sendall(line(item))


def _live(assignment: Assignment, say: _Mouth, lines: Any) -> int:
    if assignment.role == "ps":
        return _stand(assignment, say, lines)
    _threads(assignment)
    from services.trainer import program
    from services.trainer.worker import program_data

    path, dog = Path(assignment.program), _watched(assignment, say)
    with dog.limited("its import"):
        module = program.load(path, assignment.request.program.digest)
    if assignment.role == "chief":
        return _lead(assignment, module, say, lines, dog)
    program_data.serve(module, dog)
    return _stand(assignment, say, lines)


def _watched(assignment: Assignment, say: _Mouth) -> Watchdog:
    """The program's watchdog, on its post; what it finds wrong is said, and ends this process."""
    dog = Watchdog(assignment.program, assignment.stuck_early_s, assignment.stuck_s)

    def end(failed: Failed) -> None:
        try:
            say(failed)
        finally:
            os._exit(EXIT_PEER_LOST if failed.peer else EXIT_FAILED)

    dog.start(say.handle, end)
    return dog


def _threads(assignment: Assignment) -> None:
    """As many threads as cores are ours; enough between operations that no worker waits for
    another's.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(within(assignment))
    tf.config.threading.set_inter_op_parallelism_threads(between(assignment))


def within(assignment: Assignment) -> int:
    return max(1, round(assignment.resources.cpu))


def between(assignment: Assignment) -> int:
    return len(assignment.cluster["worker"]) + assignment.worker_slack


def _lead(assignment: Assignment, module: Any, say: _Mouth, lines: Any, dog: Watchdog) -> int:
    from services.trainer.worker.chief import Chief

    inbox: queue.Queue[Any] = queue.Queue()
    chief = Chief(assignment, module, say, inbox, dog)
    chief.prepare()
    text = lines.readline()
    if not text:
        return EXIT_FINISHED
    order = ORDERS.decode(text)
    if not isinstance(order, Begin):
        raise RuntimeError(f"expected an order to begin, not {order}")
    restore_priority()
    threading.Thread(target=_listen, args=(lines, inbox), daemon=True).start()
    chief.begin(order)
    chief.train()
    return EXIT_FINISHED


def _listen(lines: Any, inbox: queue.Queue[Any]) -> None:
    for text in lines:
        inbox.put(ORDERS.decode(text))
    os._exit(EXIT_FINISHED)


def _stand(assignment: Assignment, say: _Mouth, lines: Any) -> int:
    """Be a ps or a worker until the supervisor closes the channel."""

    role, index = assignment.role, assignment.index
    errors = _errors()
    try:
        server = serve(assignment.cluster, role, index, between(assignment), within(assignment))
    except errors.OpError as error:
        say(Failed(cause=f"cannot serve on {assignment.cluster[role][index]}: {error}", peer=True))
        return EXIT_PEER_LOST
    say(Prepared(seconds=0.0))
    for text in lines:
        if isinstance(ORDERS.decode(text), Begin):
            restore_priority()
    del server
    return EXIT_FINISHED


def _errors() -> Any:
    """TensorFlow's errors, however much of it is imported."""

    imported()
    from tensorflow.python.framework import errors_impl

    return errors_impl


def _explain(error: BaseException, say: _Mouth, program: str) -> int:
    """Say what broke: another task's death, or the program, with its own traceback."""
    if peer_lost(error):
        say(Failed(cause=f"{type(error).__name__}: {str(error)[:500]}", peer=True))
        return EXIT_PEER_LOST
    say(Failed(cause=failure_cause.told(error, program)))
    return EXIT_FAILED


def peer_lost(error: BaseException) -> bool:
    """Also where our port is not free, or a server has gone meanwhile, of which TensorFlow says no
    more than this.
    """
    errors = _errors()
    if isinstance(error, errors.UnknownError | errors.InvalidArgumentError):
        return any(words in str(error) for words in PEER_WORDS)
    return isinstance(error, errors.UnavailableError | errors.AbortedError | errors.CancelledError)


def lower_priority(nice: int) -> None:
    """Run at this niceness. Call it before TensorFlow starts threads: they inherit it."""
    if nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def restore_priority() -> None:
    """Give every thread of this process its full CPU weight, as far as that is allowed."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)
        except (ProcessLookupError, PermissionError):
            continue


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    process.die_with_parent()
    credential_isolation.blindfold()
    os._exit(run(channel))


def imported() -> Any:
    """The module that has `Server`."""
    if "tensorflow" not in sys.modules:
        sys.modules["tensorflow"] = _empty_package()
    try:
        from tensorflow.python.training import server_lib
    except (ImportError, AttributeError):
        for name in [n for n in sys.modules if n.split(".")[0] == "tensorflow"]:
            del sys.modules[name]
        from tensorflow.python.training import server_lib
    return server_lib


def _empty_package() -> ModuleType:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("TensorFlow is not installed")
    package = ModuleType("tensorflow")
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations)
    return package


def serve(cluster: dict[str, list[str]], role: str, index: int, between: int, within: int) -> Any:
    """A started server; `between` and `within` are its threads between and within operations.

    Raises `tensorflow.errors.OpError` where it cannot serve, for instance because the port is
    taken.
    """
    from tensorflow.core.protobuf import config_pb2

    library = imported()
    config = config_pb2.ConfigProto(
        inter_op_parallelism_threads=between, intra_op_parallelism_threads=within
    )
    return library.Server(
        library.ClusterSpec(cluster), job_name=role, task_index=index, config=config
    )


if __name__ == "__main__":
    main()
