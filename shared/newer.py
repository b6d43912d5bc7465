"""Messages of a kind that only a newer version has, while its services run beside this one. Pure.

What a service says in words of a later version is for that version's services, and is passed over:
each one as a dead letter would fill the namespace's budget, and tell the operator of an upgrade as
if it were a fault. What a person asks for becomes a dead letter, from where it can be put back
after the upgrade. A header alone proves nothing; but the permissions let nobody publish on such a
subject unless a newer version has given that right to a user of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.permissions import ALLOCATOR, LAUNCHER, MONITOR
from shared.subjects import tag_in

SERVICES = (MONITOR, ALLOCATOR, LAUNCHER, "trainer")
"""Who publishes messages, by the names of their connections."""


def type_of(tag: str) -> str:
    """Return the CloudEvents type of a message."""
    return f"dev.weir.{tag}.v1"


def is_from_newer_service(subject: str, headers: Mapping[str, str] | None) -> bool:
    """Return whether a service says this in a word that is unknown here; `subject`: of an unknown
    kind.
    """
    said = headers or {}
    return said.get("ce-source") in SERVICES and said.get("ce-type") == type_of(tag_in(subject))
