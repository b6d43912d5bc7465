"""A training program: a plain Python file without a Weir import, or a folder with such a file.

In a pod a program lies below a folder with the name of its digest:

    <digest>/mine.py           a single file
    <digest>/main.py, ...      the files of an archive (`program_archive.py`)
    <digest>.zip               the archive itself

It has `model()`, `optimizer()`, `loss(labels, outputs)`, and its data in one of two forms:

    examples() (how many) and dataset(start, stop) or dataset(numbers)
    files() (a list of paths) and read(file)

`dataset` and `read` return a `tf.data.Dataset` of single examples `(inputs, label)`. Weir makes the
batches, unless the program has `batched(dataset, size)`. It may have `evaluation()` (a dataset of
examples that are not trained on), `metrics()` (Keras metrics for it) and `outputs(models, inputs)`
(what they measure). With `train_step(models, optimizers, batch)` it needs no `loss`, and with a
model that it compiles neither `loss` nor `optimizer`. The error names a missing function.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Container
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath, PurePosixPath
from types import CodeType, ModuleType

from services.trainer import program_params
from services.trainer.program_archive import BadArchive, holds_files, read_archive, write_folder
from services.trainer.program_params import Params, Signature, signature_of

NAME_BYTES = 200  # of a file name; file systems allow 255
NUMBERED, OF_FILES = ("examples", "dataset"), ("files", "read")
REQUIRED = ("model", "optimizer", "loss", *NUMBERED)
OPTIONAL = ("train_step", "outputs", "evaluation", "metrics", "batched")
FUNCTIONS = (*REQUIRED, *OF_FILES, *OPTIONAL)
ARCHIVE = ".zip"
COMPILE = re.compile(rb"(?<!\bre)\.compile\(")
NO_OVERWRITE = (
    "ema_overwrite_frequency, which Weir does not support: leave it out; with use_ema the averages"
    " become the weights before the evaluation and the last checkpoint"
)


class BadProgram(Exception):
    """The program cannot be used; the text has every reason. `at`: the function that is at
    fault, and `file` and `line` are its place.
    """

    ag_pass_through = True
    """TensorFlow raises it as it is, also from a function that it rewrites."""

    def __init__(self, why: str, at: object = None) -> None:
        super().__init__(why)
        code = getattr(at, "__code__", None)
        self.file: str | None = getattr(code, "co_filename", None)
        self.line: int | None = getattr(code, "co_firstlineno", None)


def load(path: Path, digest: str, entry: str = "", params: Params | None = None) -> ModuleType:
    """Import the program under a name of its own, if it has this digest, and give its functions
    their parameters.

    `path`: its file; `entry`: the path of this file in a program of several, empty for a single
    one. Raise `BadProgram` for functions that are missing or have the wrong type, and for
    parameters that none takes or that are missing; import errors pass through.
    """
    sources = _checked_sources(path, digest, entry)
    loader = _CheckedLoader("weir_training_program", path, sources[entry or path.name])
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    if spec is None or path.suffix != ".py":
        raise BadProgram(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    _forget_helpers()
    if entry:
        _let_import_from(path, entry)
    sys.modules[spec.name] = module
    loader.exec_module(module)
    compiles = any(map(compiles_model, sources.values()))
    _check_functions(module, path.name, compiles)
    reads_variable = any(mentions_params(text) for text in sources.values())
    _check_params(module, path.name, params or {}, reads_variable)
    program_params.bind_params(module, called_functions(module), params or {})
    return module


class _CheckedLoader(SourceFileLoader):
    """Compile exactly the bytes that were checked, and ignore compiled files of earlier runs."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.source, self.path)
        return code


def _checked_sources(path: Path, digest: str, entry: str) -> dict[str, bytes]:
    """Return the Python files of a program by path. Raise `BadProgram` if it has not this digest."""
    changed = f"{path.name} is not the requested program: it was changed in this pod"
    stored = stored_file(path, entry)
    body = stored.read_bytes()
    if program_digest(body) != digest:
        raise BadProgram(changed)
    if not entry:
        return {path.name: body}
    files = program_files(body, entry, path.name)
    if not holds_files(program_folder(path, entry), files):
        raise BadProgram(changed)
    return {name: text for name, text in files.items() if name.endswith(".py") or name == entry}


def mentions_params(text: bytes) -> bool:
    """Return whether a Python file reads all parameters from the environment."""
    return program_params.VARIABLE.encode() in text


def _check_params(module: ModuleType, name: str, params: Params, reads_variable: bool) -> None:
    """Raise `BadProgram` for parameters that no function takes, and for those that are missing."""
    signatures = module_signatures(module)
    reasons = list(program_params.param_reasons(name, signatures, params, reads_variable))
    at = None
    for function, signature in signatures.items():
        for lacking in program_params.missing_params(function, signature, params):
            reasons.append(missing_param(function, lacking))
            at = getattr(module, function)
    if reasons:
        raise BadProgram("\n".join(reasons), at if len(reasons) == 1 else None)


def missing_param(function: str, name: str) -> str:
    """Return the reason against a parameter without a default that the job does not give."""
    return f"{function}() needs {name}: give it a default, or a value in `params:`"


def module_signatures(module: ModuleType) -> dict[str, Signature]:
    """Return the signature of each function of the program that Weir calls."""
    return {name: signature_of(getattr(module, name)) for name in called_functions(module)}


def called_functions(module: ModuleType) -> list[str]:
    """Return the names of the program's functions that Weir calls."""
    return called_names([name for name in FUNCTIONS if has_function(module, name)])


def called_names(found: Container[str]) -> list[str]:
    """Return which of these functions of a program Weir calls. One with `dataset` may have
    functions of its own that are called `files` and `read`.
    """
    unused = OF_FILES if "dataset" in found else ()
    return [name for name in FUNCTIONS if name in found and name not in unused]


def reads_files(module: ModuleType) -> bool:
    """Return whether a program gives its examples by `files()` and `read(file)`."""
    return has_function(module, "files") and not has_function(module, "dataset")


# ---------------------------------------------------------------- the files of a program

DIGEST = re.compile(r"sha256-[0-9a-f]{64}")
_import_folders: list[str] = []
"""The folders on Python's path that belong to the loaded program."""


def _let_import_from(path: Path, entry: str) -> None:
    """Let a program import its other files, like a script that was started in its folder."""
    sys.dont_write_bytecode = True  # its folder is read-only, and nothing is added to it
    folders = dict.fromkeys([str(path.parent), str(program_folder(path, entry))])
    _import_folders.extend(folders)
    sys.path[:0] = folders


def _forget_helpers() -> None:
    """Forget the other files of a program that was loaded earlier in this process."""
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        if any(_is_below(place, _import_folders) for place in places if place):
            del sys.modules[name]
    sys.path[:] = [folder for folder in sys.path if folder not in _import_folders]
    _import_folders.clear()
    importlib.invalidate_caches()


def _is_below(place: str, folders: list[str]) -> bool:
    return any(place == folder or place.startswith(f"{folder}/") for folder in folders)


def write_program(body: bytes, name: str, digest: str, entry: str, folder: Path) -> Path:
    """Write a program below this folder, whole or not at all, unless it is there unchanged. Return
    the path of its file. Raise `BadProgram` if its archive cannot be used.
    """
    if not entry:
        path = folder / digest / safe_file_name(name)
        _write_atomically(path, body)
        return path
    files = program_files(body, entry, name)
    root = folder / digest
    _write_atomically(folder / f"{digest}{ARCHIVE}", body)
    if not holds_files(root, files):
        write_folder(files, root)
    return root / entry


def _write_atomically(path: Path, body: bytes) -> None:
    """Write a file completely or not at all."""
    if path.is_file() and path.read_bytes() == body:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(".part")  # no program has this name
    part.write_bytes(body)
    part.replace(path)


def program_files(body: bytes, entry: str, name: str) -> dict[str, bytes]:
    """Return the files of a program's archive. Raise `BadProgram` if it cannot be read or lacks the
    entry.
    """
    try:
        files = read_archive(body)
    except BadArchive as error:
        raise BadProgram(
            "\n".join(f"{name}: {line}" for line in str(error).splitlines())
        ) from error
    if entry not in files:
        raise BadProgram(f"{name} has no file {entry}")
    return files


def program_folder(path: Path, entry: str) -> Path:
    """Return the folder of a program whose entry has this path."""
    return path.parents[len(PurePosixPath(entry).parts) - 1] if entry else path.parent


def stored_file(path: Path, entry: str) -> Path:
    """Return the file with the bytes that have the program's digest."""
    if not entry:
        return path
    folder = program_folder(path, entry)
    return folder.with_name(f"{folder.name}{ARCHIVE}")


def is_program_file(path: str, program: str) -> bool:
    """Return whether this is a file of the program with this path, here or in another pod: there
    the folder differs, but not the digest in it.
    """
    digest = DIGEST.search(program)
    if digest:
        return f"/{digest[0]}/" in path
    return PurePath(path).parts[-2:] == PurePath(program).parts[-2:]


def files_prefix(program: str) -> str:
    """Return the text with which the path of each of the program's files begins in this pod."""
    digest = DIGEST.search(program)
    return program[: digest.end() + 1] if digest else program


def own_name(path: str) -> str:
    """Return the path of a program's file as its author knows it."""
    digest = DIGEST.search(path)
    return path[digest.end() + 1 :] if digest else PurePath(path).name


# ---------------------------------------------------------------- the functions of a program


def program_digest(body: bytes) -> str:
    """Return the digest under which a program is stored and requested."""
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


def _check_functions(module: ModuleType, name: str, compiles: bool) -> None:
    found = [each for each in FUNCTIONS if has_function(module, each)]
    if wrong := missing_functions(name, found, compiles):
        raise BadProgram(wrong)


def missing_functions(name: str, found: Container[str], compiles: bool = False) -> str:
    """Return which required functions a program of this name lacks, as text; empty if it has all.

    `compiles`: its text seems to compile a model; if it does not, it fails when the model is built.
    """
    data = OF_FILES if "files" in found and "dataset" not in found else NUMBERED
    required = (*[function for function in REQUIRED if function not in NUMBERED], *data)
    needed = [function for function in required if function not in found]
    if compiles:
        needed = [function for function in needed if function not in ("loss", "optimizer")]
    elif "train_step" in found:
        needed = [function for function in needed if function != "loss"]
    return f"{name} lacks {', '.join(f'{each}()' for each in needed)}" if needed else ""


def compiles_model(text: bytes) -> bool:
    """Return whether a Python file seems to compile a Keras model."""
    return bool(COMPILE.search(text))


def has_function(module: ModuleType, name: str) -> bool:
    """Return whether the program has this function; an imported `itertools.batched` is not meant
    for Weir.
    """
    found = getattr(module, name, None)
    return callable(found) and found is not getattr(itertools, "batched", None)


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
