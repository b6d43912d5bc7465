"""A training program: a plain Python file without a Weir import.

It has `model()`, `optimizer()`, `loss(labels, outputs)`, `examples()` (how many) and
`dataset(start, stop)` (a `tf.data.Dataset` of single examples `(inputs, label)`; Weir batches). It
may have `evaluation()` (a dataset of examples that are not trained on) and `metrics()` (Keras
metrics for it). The error names a missing function.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Container
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

NAME_BYTES = 200  # of a file name; file systems allow 255
REQUIRED = ("model", "optimizer", "loss", "examples", "dataset")
OPTIONAL = ("evaluation", "metrics")
NO_OVERWRITE = (
    "ema_overwrite_frequency, which Weir does not support: leave it out; with use_ema the averages"
    " become the weights before the evaluation and the last checkpoint"
)


class BadProgram(Exception):
    """The program cannot be used; the text has every reason. `at`: the function that is at
    fault.
    """

    def __init__(self, why: str, at: object = None) -> None:
        super().__init__(why)
        self.line: int | None = getattr(getattr(at, "__code__", None), "co_firstlineno", None)


def load(path: Path, digest: str) -> ModuleType:
    """Import the file under a name of its own, if it has this digest.

    Raise `BadProgram` for functions that are missing or have the wrong type; import errors pass
    through.
    """
    loader = _CheckedLoader("weir_training_program", path, digest)
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    if spec is None or path.suffix != ".py":
        raise BadProgram(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader.exec_module(module)
    _check_functions(module, path.name)
    return module


class _CheckedLoader(SourceFileLoader):
    """Compile exactly the bytes whose digest was checked, and ignore compiled files of earlier
    runs.
    """

    def __init__(self, name: str, path: Path, digest: str) -> None:
        super().__init__(name, str(path))
        self.digest = digest

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        if program_digest(source) != self.digest:
            raise BadProgram(
                f"{Path(self.path).name} is not the requested program: it was changed in this pod"
            )
        code: CodeType = self.source_to_code(source, self.path)
        return code


def program_digest(body: bytes) -> str:
    """Return the digest under which a program is stored and requested."""
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


def _check_functions(module: ModuleType, name: str) -> None:
    if wrong := missing_functions(name, [f for f in REQUIRED if has_function(module, f)]):
        raise BadProgram(wrong)


def missing_functions(name: str, found: Container[str]) -> str:
    """Return which required functions a program of this name lacks, as text; empty if it has
    all.
    """
    missing = [f"{function}()" for function in REQUIRED if function not in found]
    return f"{name} lacks {', '.join(missing)}" if missing else ""


def has_function(module: ModuleType, name: str) -> bool:
    """Return whether the program has this function."""
    return callable(getattr(module, name, None))


def safe_file_name(name: str) -> str:
    """Return the file name for a program, whatever a request calls it: no folder, no forbidden
    character.
    """
    last = name.replace("\\", "/").split("/")[-1]
    clean = "".join(c if c.isprintable() else "_" for c in last)
    return clean.encode()[-NAME_BYTES:].decode(errors="ignore").lstrip(".") or "program"


def example_count(module: ModuleType) -> int:
    count = module.examples()
    if not isinstance(count, int) or count < 1:
        raise BadProgram(
            f"examples() returned {count!r}; a whole number of at least 1 is needed",
            module.examples,
        )
    return count
