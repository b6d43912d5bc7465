"""Numbers at and beyond the bounds of their fields, for every field of a message, by its type."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from shared.bus import subjects
from shared.messages import Message

M = TypeVar("M", bound=Message)
Number = inspect.IntType | inspect.FloatType
Place = tuple[tuple[str | int, ...], Number]
BEYOND_REASON = (5e-324, 1e-300, 1e300, 1.7e308, -1.7e308, 2**62, -(2**62), 10**30)


def places(message: Message) -> list[Place]:
    """Return the place and type of every number that a message has or may have."""
    return [*_places(inspect.type_info(type(message)), msgspec.to_builtins(message), ())]


def _places(kind: inspect.Type, raw: Any, at: tuple[str | int, ...]) -> Iterator[Place]:
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _places(one, raw, at)
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        yield at, kind
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from _places(
                field.type, raw.get(field.encode_name) if raw else None, (*at, field.encode_name)
            )
    elif isinstance(kind, inspect.VarTupleType) and raw:
        yield from _places(kind.item_type, raw[0], (*at, 0))


def at_bounds(kind: Number) -> tuple[float, ...]:
    """Return the two bounds of a number; every number of a message must have both."""
    assert kind.ge is not None and kind.le is not None, "a number without bounds"
    return kind.ge, kind.le


def beyond_bounds(kind: Number) -> tuple[float, ...]:
    least, most = at_bounds(kind)
    if isinstance(kind, inspect.IntType):
        return least - 1, most + 1
    return math.nextafter(least, -math.inf), math.nextafter(most, math.inf)


def with_number(message: Message, place: Place, value: float) -> bytes:
    """Return the body of the message with the number at this place replaced."""
    raw = msgspec.json.decode(msgspec.json.encode(message))
    *way, last = place[0]
    at: Any = raw
    for step in way:
        at = at[step] if isinstance(at, list) else at.setdefault(step, {})
    at[last] = value
    return msgspec.json.encode(raw)


def read(message: M, body: bytes) -> M | None:
    """Return the message as a service reads it, or None if it is refused."""
    try:
        found = subjects.decode_message(subjects.subject_of(message), body)
    except subjects.UnreadableMessage:
        return None
    return found if isinstance(found, type(message)) else None


def odd(message: M, seed: int) -> M | None:
    """Return the message with one extreme number, as a service reads it, or None if refused."""
    if not (found := places(message)):
        return message
    place = found[seed % len(found)]
    values = (*at_bounds(place[1]), *at_bounds(place[1]), *beyond_bounds(place[1]), *BEYOND_REASON)
    return read(message, with_number(message, place, values[seed // len(found) % len(values)]))
