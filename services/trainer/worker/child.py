"""One task of one generation, in a process of its own; the only processes that run TensorFlow.

The pod's fork server, which has imported TensorFlow already, forks it; or it is started as a new
process (`python -m services.trainer.worker.child FD`). It exchanges lines with its supervisor over
a socket and ends with it.

A ps runs no Python of the program: everything happens in TensorFlow's C++ library. Importing only
the module that starts a server takes 0.3 s of CPU in place of 2.4 s, and 370 MB in place of 650 MB
(TensorFlow 2.21): 2 s on a fifth of a core in place of 12 s. `import tensorflow` runs the package's
`__init__`, so an empty package of that name stands in its place. If that fails (another version),
all of TensorFlow is imported.

CPU weight: a child has a low one while it prepares beside a running generation, and its full one
once it trains. Niceness belongs to a thread, and threads inherit it, so it is lowered before
TensorFlow starts any thread and raised again for each.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
    Failed,
    Line,
    Prepared,
    Started,
    encode_line,
)
from services.trainer.worker import exactness, failure_cause
from services.trainer.worker.ps_memory import PsTooSmall
from services.trainer.worker.watchdog import Watchdog
from shared.messages import Program
from shared.runtime import process

HIDDEN_FROM_KERAS = ("matplotlib", "sklearn")
PEER_WORDS = ("Could not start gRPC server", "some remote workers have been restarted")


def run_child(channel: socket.socket) -> int:
    """Read the assignment, run the task, and return the exit code."""
    lines = channel.makefile("rb")
    assignment = msgspec.json.decode(lines.readline(), type=Assignment)
    lower_priority(assignment.nice)
    send = LineWriter(channel)
    send(Started(pid=os.getpid()))
    faulthandler.enable(channel.fileno(), all_threads=False)
    try:
        return _run_role(assignment, send, lines)
    except BaseException as error:
        return report_failure(error, send, assignment)


class LineWriter:
    """Write lines, one at a time, from any thread. `handle` is for output without Python."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self.handle = channel.fileno()

    def __call__(self, item: Line) -> None:
        with self._lock:
            self._channel.sendall(encode_line(item))


def _run_role(assignment: Assignment, send: LineWriter, lines: Any) -> int:
    if assignment.role == "ps":
        return _serve_tensorflow(assignment, send, lines)
    import_tensorflow()
    _configure_threads(assignment)
    if assignment.request.consistency == "exact":
        exactness.enable_determinism()
        exactness.disable_graph_rewrites()
        exactness.set_initial_seed(assignment.request)
    from services.trainer.worker import input_pipeline, step_resources

    if assignment.role == "chief":
        step_resources.name_devices_of_chief()
    dog = _start_watchdog(assignment, send)
    began = time.monotonic()
    with dog.limit("its import"):
        asked = assignment.request
        module = load_program(Path(assignment.program), asked.program, asked.params)
    if assignment.role == "chief":
        return _run_chief(assignment, module, send, lines, dog, time.monotonic() - began)
    input_pipeline.serve_portions(module, dog)
    return _serve_tensorflow(assignment, send, lines)


def load_program(path: Path, asked: Program, params: Mapping[str, Any]) -> ModuleType:
    """Import a program into this process. Its parameters are in the environment, too.

    The folder of a program of several files becomes the working directory.
    """
    from services.trainer import program
    from services.trainer.worker import step_resources

    os.environ[program.VARIABLE] = msgspec.json.encode(params).decode()
    if asked.entry:
        os.chdir(program.program_folder(path, asked.entry))
    with step_resources.program_tables():
        return program.load(path, asked.digest, asked.entry, params)


def _start_watchdog(assignment: Assignment, send: LineWriter) -> Watchdog:
    """Start the program's watchdog; a failure that it finds is reported and ends this process."""
    dog = Watchdog(assignment.program, assignment.stuck_early_s, assignment.stuck_s)

    def end(failed: Failed) -> None:
        try:
            send(failed)
        finally:
            os._exit(EXIT_PEER_LOST if failed.peer else EXIT_FAILED)

    dog.start(send.handle, end)
    return dog


def _configure_threads(assignment: Assignment) -> None:
    """Set the threads of this process; those of the chief hold for its calls on other tasks, too.

    Call it before anything else uses TensorFlow's runtime. `tf.config.threading` cannot switch off
    spinning.
    """
    import tensorflow as tf

    tf.compat.v1.enable_eager_execution(config=task_thread_config(assignment))


def task_thread_config(assignment: Assignment) -> Any:
    """Return a configuration with as many threads as this task has cores, and with enough threads
    between operations that no worker waits for another.

    An idle thread of TensorFlow spins for a while before it sleeps. In a task with less than a core
    that takes CPU time from the other threads: about an eighth of a worker's time.
    """
    return thread_config(
        inter_op_threads(assignment),
        intra_op_threads(assignment),
        spins=assignment.resources.cpu >= 1.0,
    )


def thread_config(inter_op: int, intra_op: int, spins: bool = True) -> Any:
    """Return a configuration with this many threads between and within operations. `spins`: idle
    threads look for work for a while before they sleep.
    """
    import_server_library()
    from tensorflow.core.protobuf import config_pb2

    config = config_pb2.ConfigProto(
        inter_op_parallelism_threads=inter_op, intra_op_parallelism_threads=intra_op
    )
    config.experimental.disable_thread_spinning = not spins
    return config


def intra_op_threads(assignment: Assignment) -> int:
    if assignment.request.consistency == "exact":
        return exactness.operation_threads(assignment.request, assignment.role)
    return max(1, round(assignment.resources.cpu))


def inter_op_threads(assignment: Assignment) -> int:
    return len(assignment.cluster["worker"]) + assignment.worker_slack


def _run_chief(
    assignment: Assignment,
    module: Any,
    send: LineWriter,
    lines: Any,
    watchdog: Watchdog,
    import_s: float,
) -> int:
    from services.trainer.worker.chief import Chief

    inbox: queue.Queue[Any] = queue.Queue()
    chief = Chief(assignment, module, send, inbox, watchdog, import_s)
    threading.Thread(target=_read_orders, args=(lines, inbox), daemon=True).start()
    chief.prepare()
    order = chief.await_begin()
    restore_priority()
    chief.begin(order)
    chief.train()
    return EXIT_FINISHED


def _read_orders(lines: Any, inbox: queue.Queue[Any]) -> None:
    try:
        for text in lines:
            inbox.put(ORDERS.decode(text))
    except msgspec.DecodeError as error:
        inbox.put(error)
        return
    os._exit(EXIT_FINISHED)


def _serve_tensorflow(assignment: Assignment, send: LineWriter, lines: Any) -> int:
    """Serve as ps or worker until the supervisor closes the channel."""

    role, index = assignment.role, assignment.index
    errors = _tf_errors()
    if assignment.request.consistency == "exact":
        exactness.enable_determinism()
    try:
        server = start_server(assignment.cluster, role, index, task_thread_config(assignment))
    except errors.OpError as error:
        send(Failed(cause=f"cannot serve on {assignment.cluster[role][index]}: {error}", peer=True))
        return EXIT_PEER_LOST
    send(Prepared(seconds=0.0))
    for text in lines:
        if isinstance(ORDERS.decode(text), Begin):
            restore_priority()
    del server
    return EXIT_FINISHED


def _tf_errors() -> Any:
    """Return TensorFlow's error classes, whether or not all of it is imported."""

    import_server_library()
    from tensorflow.python.framework import errors_impl

    return errors_impl


def report_failure(
    error: BaseException, send: Callable[[Line], None], assignment: Assignment
) -> int:
    """Report the cause: the loss of another task, or the program's failure with its traceback."""
    if is_peer_lost(error):
        send(Failed(cause=f"{type(error).__name__}: {str(error)[:500]}", peer=True))
        return EXIT_PEER_LOST
    if isinstance(error, failure_cause.StorageUnavailable):
        send(Failed(cause=str(error), peer=True))
        return EXIT_PEER_LOST
    if isinstance(error, PsTooSmall):
        send(Failed(cause=str(error), too_small=error.other_size_fits or assignment.beside))
        return EXIT_FAILED
    send(Failed(cause=failure_cause.describe_failure(error, assignment.program)))
    return EXIT_FAILED


def is_peer_lost(error: BaseException) -> bool:
    """Return whether another task is the cause. TensorFlow reports a port that is taken, or a
    server that has gone, only by these texts.
    """
    errors = _tf_errors()
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
    credential_isolation.drop_ptrace()
    os._exit(run_child(channel))


def import_tensorflow() -> None:
    """Import TensorFlow and Keras, without libraries that training does not need.

    Keras imports scikit-learn and matplotlib, if they are installed, for `keras.wrappers` and
    `keras.visualization` only. They take a third of the CPU (1.7 of 5.4 s, TensorFlow 2.21), and
    garbage collection takes 0.7 s more. A program can still import both itself.
    """
    import_without(HIDDEN_FROM_KERAS, "keras", "tensorflow")
    import keras
    import tensorflow as tf

    # TensorFlow imports these parts at their first use.
    _ = (keras.Model, tf.distribute.ParameterServerStrategy, tf.keras)


def import_without(hidden: Sequence[str], *names: str) -> None:
    """Import the modules `names` as if the packages `hidden` were not installed, unless these are
    imported already.
    """
    blocked = [package for package in hidden if package not in sys.modules]
    collects = gc.isenabled()
    gc.disable()
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        for package in blocked:
            del sys.modules[package]
        if collects:
            gc.enable()


def import_server_library() -> Any:
    """Return the TensorFlow module that has `Server`."""
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


def start_server(cluster: dict[str, list[str]], role: str, index: int, config: Any) -> Any:
    """Return a started server. `config`: of `thread_config`.

    Raise `tensorflow.errors.OpError` if it cannot serve, for instance because the port is taken.
    """
    library = import_server_library()
    return library.Server(
        library.ClusterSpec(cluster), job_name=role, task_index=index, config=config
    )


if __name__ == "__main__":
    main()
