"""What stands around Kubernetes' objects: pages of lists, lines of watches, refusals. Null stands
for absent.
"""

from __future__ import annotations

import msgspec


class Strange(ValueError):
    """An object that is not as Kubernetes makes them; the text says where."""


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """A piece of an API object."""


class ListMeta(Shape, frozen=True):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class Page(Shape, frozen=True):
    """One page of a list; its objects are as yet unread."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Line(Shape, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Versioned(Shape, frozen=True):
    """What every object has, and every bookmark."""

    metadata: ListMeta


class Status(Shape, frozen=True):
    """The API's way to say no."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
