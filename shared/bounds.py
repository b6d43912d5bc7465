"""Limits on what a message may contain, on facts that wait for their order, and on unknown fields.

`within_bounds` clamps the measured values of a message, and shortens its texts and lists. A value
may be beyond the bounds of its field: a speed over a very short time, a pause of a job that was
stopped for years, the text of a program's error. Without this the whole message would become a dead
letter.

Facts and orders come in two streams, which are read independently. A fact that is read before its
order waits. Law: if a job has too many waiting facts, only facts of the same job are dropped; the
same holds for a namespace.

`unknown_fields` finds the fields of a JSON document that a message type does not have. The decoders
ignore unknown fields, so that an older version reads messages of a newer one. A request is the
exception: a person wrote it, and an unknown field is a typing error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from shared.messages import JobMessage
from shared.text import cut_middle

P = TypeVar("P", bound=msgspec.Struct)
Clamp = Callable[[Any], Any]
PROSE = 1_000
"""Texts with at least this bound (in characters) are prose and lose their middle; texts with a
smaller bound lose their end.
"""


def within_bounds(part: P) -> P:
    """Return the message, or a part of one, with each number, text and list within the bounds of
    its field.

    A number that JSON does not have becomes null if the field allows null, otherwise the lower
    bound.
    """
    changes = {}
    for name, clamp in _field_clamps(type(part)):
        value = getattr(part, name)
        if (kept := clamp(value)) is not value:
            changes[name] = kept
    return msgspec.structs.replace(part, **changes) if changes else part


@cache
def _field_clamps(kind: type[msgspec.Struct]) -> tuple[tuple[str, Clamp], ...]:
    """Return the fields with bounds, each with the function that clamps it."""
    told = inspect.type_info(kind)
    fields = told.fields if isinstance(told, inspect.StructType) else ()
    found = ((field.name, _type_clamp(field.type)) for field in fields)
    return tuple((name, clamp) for name, clamp in found if clamp is not None)


def _type_clamp(kind: inspect.Type) -> Clamp | None:
    """Return the function that clamps values of a type; None if it has no bounds. A name with a
    pattern is never changed.
    """
    if isinstance(kind, inspect.UnionType):
        clamps = [clamp for one in kind.types if (clamp := _type_clamp(one))]
        optional = any(isinstance(one, inspect.NoneType) for one in kind.types)
        return _optional_clamp(clamps[0], optional) if len(clamps) == 1 else None
    if isinstance(kind, inspect.FloatType | inspect.IntType):
        return _number_clamp(kind.ge, kind.le)
    if isinstance(kind, inspect.StructType) and _field_clamps(kind.cls):
        return within_bounds
    if isinstance(kind, inspect.StrType) and kind.max_length is not None and kind.pattern is None:
        return _text_clamp(kind.max_length)
    if isinstance(kind, inspect.VarTupleType):
        inner = _type_clamp(kind.item_type)
        return (
            _tuple_clamp(inner, kind.max_length) if inner or kind.max_length is not None else None
        )
    if isinstance(kind, inspect.DictType) and kind.max_length is not None:
        return _dict_clamp(_type_clamp(kind.key_type), kind.max_length)
    return None


def _number_clamp(least: float | None, most: float | None) -> Clamp:
    def clamp(value: float) -> float:
        if value != value:
            return 0.0 if least is None else least
        if least is not None and value < least:
            return least
        return most if most is not None and value > most else value

    return clamp


def _optional_clamp(clamp: Clamp, optional: bool) -> Clamp:
    def nullable(value: Any) -> Any:
        if value is None:
            return None
        if optional and isinstance(value, float) and not math.isfinite(value):
            return None
        return clamp(value)

    return nullable


def _text_clamp(longest: int) -> Clamp:
    def cut(text: str) -> str:
        if len(text) <= longest:
            return text
        return cut_middle(text, longest) if longest >= PROSE else text[:longest]

    return cut


def _tuple_clamp(clamp: Clamp | None, most: int | None) -> Clamp:
    def each(values: tuple[Any, ...]) -> tuple[Any, ...]:
        kept = values[:most]
        kept = tuple(map(clamp, kept)) if clamp else kept
        same = len(kept) == len(values) and all(
            new is old for new, old in zip(kept, values, strict=True)
        )
        return values if same else kept

    return each


def _dict_clamp(clamp: Clamp | None, most: int) -> Clamp:
    """Return a function that keeps the first entries of a dict, and shortens their keys."""

    def entries(values: dict[Any, Any]) -> dict[Any, Any]:
        if len(values) <= most and (clamp is None or all(clamp(key) is key for key in values)):
            return values
        return {clamp(key) if clamp else key: values[key] for key in list(values)[:most]}

    return entries


MOST_OF_JOB, MOST_OF_NAMESPACE = 128, 512
"""The newest facts of one job name, and of one namespace, that may wait at a time."""
LONGEST_TEXT = 1_000
"""The most characters of each text of a fact that waits."""

E = TypeVar("E")
F = TypeVar("F", bound=JobMessage)


def add_early_fact(waiting: tuple[E, ...], new: E, fact_of: Callable[[E], Any]) -> tuple[E, ...]:
    """Return the waiting facts with one more. If there are too many, the oldest one of the same job
    or namespace is dropped.
    """
    fact = fact_of(new)
    of_namespace = [each for each in waiting if fact_of(each).namespace == fact.namespace]
    of_job = [each for each in of_namespace if fact_of(each).job == fact.job]
    dropped: E | None = None
    if len(of_job) >= MOST_OF_JOB:
        dropped = of_job[0]
    elif len(of_namespace) >= MOST_OF_NAMESPACE:
        dropped = of_namespace[0]
    return (*(each for each in waiting if each is not dropped), new)


def shorten_texts(fact: F) -> F:
    """Return the fact without the middle of its long texts."""
    shortened = {}
    for name in fact.__struct_fields__:
        text = getattr(fact, name)
        if isinstance(text, str) and len(text) > LONGEST_TEXT:
            shortened[name] = cut_middle(text, LONGEST_TEXT)
    return replace(fact, **shortened) if shortened else fact


def struct_type(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct in a field's type: the type itself, or the one in `X | None` or in a tuple.
    Return None if there is none.
    """
    plain = plain_type(kind)
    for candidate in (plain, *get_args(plain)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def plain_type(kind: Any) -> Any:
    """Return a field's type without its bounds, and without `| None`."""
    if get_origin(kind) is Annotated:
        return plain_type(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        others = [each for each in get_args(kind) if each is not type(None)]
        if len(others) == 1:
            return plain_type(others[0])
    return kind


def unknown_fields(
    kind: type[msgspec.Struct], raw: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    """Yield the path of every field in `raw`, nested ones too, that `kind` does not declare."""
    declared = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in raw.items():
        if name in declared:
            yield from _unknown_in_value(declared[name], value, path + name)
        elif name != kind.__struct_config__.tag_field:
            yield path + name


def _unknown_in_value(kind: Any, value: Any, path: str) -> Iterator[str]:
    struct = struct_type(kind)
    if struct is None:
        return
    if isinstance(value, dict) and get_origin(kind) is not dict:
        yield from unknown_fields(struct, value, f"{path}.")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict):
                yield from unknown_fields(struct, item, f"{path}[{number}].")
