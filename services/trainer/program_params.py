"""The parameters of a job (`params:` in its file) as keyword arguments of its program's functions.

A function gets the parameters that its signature names, and all of them if it takes `**kwargs`. The
arguments that Weir itself gives come first and by position (`loss(labels, outputs)`), so they are
no parameters of the job.

A parameter that no function takes is an error. The exception is a program whose text mentions
`WEIR_PARAMS`: that environment variable has all parameters as a JSON object, from before the import
on.

The functions are replaced in the program's module when it is loaded. So their callers, also those
in the program's own module, need to know nothing of parameters.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

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
    """The arguments that a function takes. `positional`: the names of what may come by position, in order;
    `required`: the names without a default; `keywords`: the names that may be given by keyword;
    `more_positional`: it has `*args`; `more_keywords`: it has `**kwargs`.
    """

    positional: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    keywords: frozenset[str] = frozenset()
    more_positional: bool = False
    more_keywords: bool = False


ANYTHING = Signature(more_positional=True, more_keywords=True)
"""Of a function whose signature cannot be known."""


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return what a function can be given; `ANYTHING` if Python does not know."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ANYTHING
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    kinds = {each.kind for each in parameters}
    return Signature(
        positional=tuple(each.name for each in parameters if each.kind in by_position),
        required=frozenset(
            each.name
            for each in parameters
            if each.kind in (*by_position, *by_keyword) and each.default is each.empty
        ),
        keywords=frozenset(each.name for each in parameters if each.kind in by_keyword),
        more_positional=inspect.Parameter.VAR_POSITIONAL in kinds,
        more_keywords=inspect.Parameter.VAR_KEYWORD in kinds,
    )


def argument_count(name: str, signature: Signature) -> int:
    """Return how many arguments Weir gives a function by position. `dataset` has two forms: (start,
    stop), and one array of numbers.
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
    return [each for each in _ordered(signature) if each in lacking]


def _ordered(signature: Signature) -> list[str]:
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
