"""The needs of `consistency: exact` besides updates with the same parts: the same bits from each
operation, and the same random numbers.

TensorFlow's deterministic operations give the same bits for the same inputs; an operation that has
no such form fails when it runs for the first time, and its error names it. Sums in an operation are
divided among its threads, so their number may not change with the size of a task. TensorFlow's
rewriting of graphs is off: what it joins depends on which variables are on the same ps, and a
matrix product of other operands is rounded otherwise. Random numbers come from states that are part
of the model (Keras), never from a generator of the worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from services.trainer.program import BadProgram, example_count, reads_files
from shared.messages import JobRequested, Role

STATEFUL_RANDOM = frozenset(
    {
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "ThreadUnsafeUnigramCandidateSampler",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)
"""Operations whose random numbers depend on what their process has drawn before."""
COMPARED = 8
"""Number of examples that are read twice."""


def initial_seed(request: JobRequested) -> int | None:
    """Return the seed of the initial weights; None: any, as the program chooses."""
    if request.consistency != "exact":
        return None
    return request.shuffle.seed % 2**32 if request.shuffle else 0


def set_initial_seed(request: JobRequested) -> None:
    """Set the seed of random numbers that the program draws when it is imported, for instance for
    the weights of a model that it makes then.
    """
    import keras

    seed = initial_seed(request)
    if seed is not None:
        keras.utils.set_random_seed(seed)


def operation_threads(request: JobRequested, role: Role) -> int:
    """Return the number of threads in an operation: it may not change with a task's size."""
    cores = getattr(request.resources, role).cpu if request.resources else 1.0
    return max(1, round(cores))


def enable_determinism() -> None:
    """Let this process run deterministic operations only. Call it before the first one."""
    from tensorflow.python.util import _pywrap_determinism

    _pywrap_determinism.enable(True)


def disable_graph_rewrites() -> None:
    """Let what this process traces run as it is. Call it in a process with all of TensorFlow."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def is_deterministic() -> bool:
    """Return whether this process runs deterministic operations only."""
    from tensorflow.python.util import _pywrap_determinism

    return bool(_pywrap_determinism.is_enabled())


def check_program(program: ModuleType) -> None:
    """Raise `BadProgram` for a program whose updates cannot be exact."""
    if reads_files(program):
        raise BadProgram(
            "files() cannot have `consistency: exact`: which worker reads a file depends on the "
            "job's history. Write examples() and dataset(numbers), or take `global-batch`",
            program.files,
        )


def check_examples(program: ModuleType) -> None:
    """Raise `BadProgram` if the first examples are others when they are read one by one. Then they
    depend on more than their numbers, and which numbers are read together depends on the workers.
    """
    from services.trainer.worker.program_data import example_digest, read_batch

    if reads_files(program):
        return
    count = min(COMPARED, example_count(program))
    together = read_batch(program, 0, count)
    for number in range(count):
        alone = read_batch(program, number, number + 1)
        if example_digest(alone, 0) != example_digest(together, number):
            raise BadProgram(
                f"dataset() gives another example {number} when it is read alone, so `consistency: "
                "exact` is not possible: draw random numbers from the number of the example, with "
                "tf.random.stateless_uniform",
                program.dataset,
            )


def check_step(program: ModuleType, graph: Any) -> None:
    """Raise `BadProgram` if a traced step draws random numbers that depend on its process."""
    found = sorted({op.type for op in _operations(graph)} & STATEFUL_RANDOM)
    if found:
        raise BadProgram(
            f"the training step uses {', '.join(found)}, whose numbers depend on what a worker has "
            "drawn before, so `consistency: exact` is not possible: use keras.random with a "
            "keras.random.SeedGenerator of the model, or tf.random.stateless_uniform",
            program.model,
        )


def _operations(graph: Any) -> Iterator[Any]:
    """Yield the operations of a graph, and of the functions that it calls."""
    yield from graph.get_operations()
    for name in graph._functions:
        function = graph._get_function(name)
        inner = getattr(function, "graph", None)
        if inner is not None:
            yield from inner.get_operations()
