"""A training program: a plain Python file without a Weir import.

It has `model()`, `optimizer()`, `loss(labels, outputs)`, `examples()` (how many) and
`dataset(start, stop)` (a `tf.data.Dataset` of single examples `(inputs, label)`; Weir batches); it
may have `evaluation()` (a dataset of examples that are not trained on) and `metrics()` (Keras
metrics for it). What is missing is named in the error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Container
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

NAME_BYTES = 200  # of a file; a folder takes names of 255
REQUIRED = ("model", "optimizer", "loss", "examples", "dataset")
OPTIONAL = ("evaluation", "metrics")
NO_OVERWRITE = (
    "ema_overwrite_frequency, which Weir does not support: leave it out; with use_ema the averages become the weights "
    "before the evaluation and the last checkpoint"
)


class BadProgram(Exception):
    """The program cannot be used; the text says why, every reason. `at`: the function of it that is
    to blame.
    """

    def __init__(self, why: str, at: object = None) -> None:
        super().__init__(why)
        self.line: int | None = getattr(getattr(at, "__code__", None), "co_firstlineno", None)


def load(path: Path, digest: str) -> ModuleType:
    """Import the file under a name of its own, if it has this digest.

    Raises `BadProgram` for what is missing or is something else; import errors pass through.
    """
    loader = _Exactly("weir_training_program", path, digest)
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    if spec is None or path.suffix != ".py":
        raise BadProgram(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader.exec_module(module)
    _check(module, path.name)
    return module


class _Exactly(SourceFileLoader):
    """Compiles the very bytes whose digest it has checked, and takes nothing that an earlier run
    has compiled.
    """

    def __init__(self, name: str, path: Path, digest: str) -> None:
        super().__init__(name, str(path))
        self.digest = digest

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        if digest_of(source) != self.digest:
            raise BadProgram(
                f"{Path(self.path).name} is not what was asked for: it was changed in this pod"
            )
        code: CodeType = self.source_to_code(source, self.path)
        return code


def digest_of(body: bytes) -> str:
    """Under which a program is stored and asked for."""
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


def _check(module: ModuleType, name: str) -> None:
    if wrong := lacking(name, [f for f in REQUIRED if has(module, f)]):
        raise BadProgram(wrong)


def lacking(name: str, found: Container[str]) -> str:
    """What a program of this name misses of what is required; empty where it has all."""
    missing = [f for f in REQUIRED if f not in found]
    return f"{name} lacks {', '.join(f'{f}()' for f in missing)}" if missing else ""


def has(module: ModuleType, name: str) -> bool:
    """Whether the program has this function."""
    return callable(getattr(module, name, None))


def file_name(name: str) -> str:
    """Under which name a program is kept, whatever a request calls it: no folder, nothing that no
    file may bear.
    """
    clean = "".join(c if c.isprintable() else "_" for c in name.replace("\\", "/").split("/")[-1])
    return clean.encode()[-NAME_BYTES:].decode(errors="ignore").lstrip(".") or "program"


def examples(module: ModuleType) -> int:
    count = module.examples()
    if not isinstance(count, int) or count < 1:
        raise BadProgram(
            f"examples() returned {count!r}; a whole number of at least 1 is needed",
            module.examples,
        )
    return count
