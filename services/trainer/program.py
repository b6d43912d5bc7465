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

The parameters of a job (`params:` in its file) are keyword arguments of these functions. A function
gets the parameters that its signature names, and all of them if it takes `**kwargs`. The arguments
that Weir itself gives come first and by position (`loss(labels, outputs)`), so they are no
parameters of the job. A parameter that no function takes is an error. The exception is a program
whose text mentions `WEIR_PARAMS`: that environment variable has all parameters as a JSON object,
from before the import on. The functions are replaced in the program's module when it is loaded. So
no caller has to pass parameters, not even a caller in the program's own module.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath, PurePosixPath
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from services.trainer.program_archive import BadArchive, holds_files, read_archive, write_folder

NAME_BYTES = 200  # of a file name; file systems allow 255
NUMBERED, OF_FILES = ("examples", "dataset"), ("files", "read")
MODEL_FUNCTIONS = ("model", "optimizer", "loss")
REQUIRED = (*MODEL_FUNCTIONS, *NUMBERED)
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
    """Makes TensorFlow raise this exception unchanged, also from a function that it rewrites."""

    def __init__(self, why: str, at: object = None) -> None:
        super().__init__(why)
        code = getattr(inspect.unwrap(at) if callable(at) else at, "__code__", None)
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
    bind_params(module, called_functions(module), params or {})
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
    """Return the Python files of a program by path. Raise `BadProgram` for another digest."""
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
    return VARIABLE.encode() in text


def _check_params(module: ModuleType, name: str, params: Params, reads_variable: bool) -> None:
    """Raise `BadProgram` for parameters that no function takes, and for those that are missing."""
    signatures = module_signatures(module)
    reasons = list(param_reasons(name, signatures, params, reads_variable))
    at = None
    for function, signature in signatures.items():
        for lacking in missing_params(function, signature, params):
            reasons.append(missing_param(function, lacking))
            at = getattr(module, function)
    if reasons:
        raise BadProgram("\n".join(reasons), at if len(reasons) == 1 else None)


def missing_param(function: str, name: str) -> str:
    """Return the reason against a job without a value for a parameter that has no default."""
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
    for name in _helper_modules():
        del sys.modules[name]
    sys.path[:] = [folder for folder in sys.path if folder not in _import_folders]
    _import_folders.clear()
    importlib.invalidate_caches()


def _helper_modules() -> list[str]:
    """Return the names of the modules that the loaded program has imported from its own files."""
    found = []
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
        if any(_is_below(place, _import_folders) for place in places if place):
            found.append(name)
    return found


def program_values(program: ModuleType) -> Iterator[object]:
    """Yield everything that has a name in a file of the program, and the elements of its lists,
    tuples and dicts.
    """
    helpers = [sys.modules[name] for name in _helper_modules()]
    for module in (program, *helpers):
        for value in list(vars(module).values()):
            yield value
            if type(value) in (list, tuple):
                yield from list(value)
            elif type(value) is dict:
                yield from list(value.values())


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
    required = REQUIRED
    if "files" in found and "dataset" not in found:
        required = (*MODEL_FUNCTIONS, *OF_FILES)
    optional: tuple[str, ...] = ()
    if compiles:
        optional = ("loss", "optimizer")
    elif "train_step" in found:
        optional = ("loss",)
    missing = []
    for function in required:
        if function not in found and function not in optional:
            missing.append(f"{function}()")
    return f"{name} lacks {', '.join(missing)}" if missing else ""


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


# ---------------------------------------------------------------- parameters


VARIABLE = "WEIR_PARAMS"
"""The environment variable with all parameters of the job, as JSON."""
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("model", "optimizer", "examples", "evaluation", "metrics", "files"), ()),
    "loss": ("labels", "outputs"),
    "dataset": ("start", "stop"),
    "read": ("file",),
    "batched": ("dataset", "size"),
    "train_step": ("models", "optimizers", "batch"),
    "outputs": ("models", "inputs"),
}
"""The arguments with which the trainer calls each function of a program, by position."""
NUMBERS = "numbers"
"""The only argument of the other form of `dataset`."""
RESERVED = frozenset({NUMBERS, *(name for names in ARGUMENTS.values() for name in names)})
"""Names that no parameter of a job can have."""

Params = Mapping[str, Any]


class Signature(NamedTuple):
    """The arguments that a function takes.

    `positional`: the names of what may come by position, in order; `required`: the names without a
    default; `keywords`: the names that may be given by keyword; `more_positional`: it has `*args`;
    `more_keywords`: it has `**kwargs`.
    """

    positional: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    keywords: frozenset[str] = frozenset()
    more_positional: bool = False
    more_keywords: bool = False


ANYTHING = Signature(more_positional=True, more_keywords=True)
"""The signature of a function whose arguments Python cannot determine."""


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function; `ANYTHING` if Python cannot determine it."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ANYTHING
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    positional = []
    required = set()
    keywords = set()
    kinds = set()
    for each in parameters:
        kinds.add(each.kind)
        if each.kind in by_position:
            positional.append(each.name)
        if each.kind in by_keyword:
            keywords.add(each.name)
        if each.kind in (*by_position, *by_keyword) and each.default is each.empty:
            required.add(each.name)
    return Signature(
        positional=tuple(positional),
        required=frozenset(required),
        keywords=frozenset(keywords),
        more_positional=inspect.Parameter.VAR_POSITIONAL in kinds,
        more_keywords=inspect.Parameter.VAR_KEYWORD in kinds,
    )


def argument_count(name: str, signature: Signature) -> int:
    """Return the number of arguments that Weir gives a function by position.

    `dataset` has two forms: (start, stop), and one array of numbers.
    """
    if name != "dataset":
        return len(ARGUMENTS[name])
    return 1 if signature.positional[:1] == (NUMBERS,) else 2


def parameter_names(name: str, signature: Signature) -> frozenset[str]:
    """Return the names of a function's parameters that a job can give."""
    own = signature.positional[: argument_count(name, signature)]
    return signature.keywords - RESERVED - set(own)


def taken_params(name: str, signature: Signature, params: Params) -> dict[str, Any]:
    """Return the parameters of a job that this function gets."""
    named = parameter_names(name, signature)
    taken = {}
    for param, value in params.items():
        is_free = signature.more_keywords and param not in signature.positional
        if param in named or is_free:
            taken[param] = value
    return taken


def missing_params(name: str, signature: Signature, params: Params) -> list[str]:
    """Return the names of a function's parameters that have no default and are not given."""
    lacking = (parameter_names(name, signature) & signature.required) - set(params)
    return [each for each in _params_in_order(signature) if each in lacking]


def _params_in_order(signature: Signature) -> list[str]:
    return [*signature.positional, *sorted(signature.keywords - set(signature.positional))]


def accepts_call(name: str, signature: Signature, params: Params) -> bool:
    """Return whether Weir can call a function with its own arguments and these parameters."""
    if missing_params(name, signature, params):
        return False
    count = argument_count(name, signature)
    own = signature.positional[:count]
    later = [each for each in signature.positional[count:] if each in signature.required]
    return (len(own) == count or signature.more_positional) and not set(later) - set(params)


def param_reasons(
    program: str, signatures: Mapping[str, Signature], params: Params, reads_variable: bool
) -> Iterator[str]:
    """Yield a reason against each parameter that no function of the program takes.

    `signatures`: of its functions, by name. `reads_variable`: its text mentions `WEIR_PARAMS`.
    """
    names = {name: parameter_names(name, each) for name, each in signatures.items()}
    known = frozenset[str]().union(*names.values())
    takes_any = reads_variable or any(each.more_keywords for each in signatures.values())
    for param in params:
        if param in RESERVED:
            yield f"params.{param}: Weir itself gives an argument of this name; take another one"
        elif param not in known and not takes_any:
            yield f"params.{param}: no function of {program} takes it{_remedy(param, names, known)}"


def _remedy(param: str, names: Mapping[str, Collection[str]], known: Collection[str]) -> str:
    near = difflib.get_close_matches(param, sorted(known), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    if known:
        calls = [f"{name}({', '.join(sorted(of))})" for name, of in names.items() if of]
        return f"; they take {', '.join(calls)}"
    return f"; name it where it is used, as in `def optimizer({param}=...):`"


# ---------------------------------------------------------------- binding


class BoundFunction(functools.partial[Any]):
    """A function of the program with its parameters. An argument of the caller comes before a
    parameter of the same name.

    It is a `partial`, because AutoGraph and `inspect` know these. It has the code of the function
    for error messages.
    """

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        by_position = signature_of(self.func).positional[: len(args)]
        rest = {name: each for name, each in self.keywords.items() if name not in by_position}
        return self.func(*args, **{**rest, **kwargs})


def bind_params(module: Any, functions: Collection[str], params: Params) -> None:
    """Replace each of these functions of a module that takes parameters by one that has them."""
    for name in functions:
        function = getattr(module, name, None)
        if not callable(function):
            continue
        taken = taken_params(name, signature_of(function), params)
        if taken:
            setattr(module, name, _bound(function, taken))


def _bound(function: Callable[..., Any], params: Params) -> BoundFunction:
    bound = BoundFunction(function, **params)
    for attribute in ("__name__", "__doc__", "__module__", "__code__"):
        if hasattr(function, attribute):
            setattr(bound, attribute, getattr(function, attribute))
    return bound
