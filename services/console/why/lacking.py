"""What else has to be read to know the causes of what is known: pure.

Orders are few, and read whole. Facts are many: they are read of the jobs and nodes that a chain
touches, and of all nodes only around a decision that names one's change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from services.cli.entry import Entry
from services.console.why.known import Known, key_of
from shared.messages import AllocationDecided, CapacityChanged


class Lack(msgspec.Struct, frozen=True):
    """Facts that are not read yet: of a job (`<namespace>.<name>`), of a node up to a time, of all
    nodes around one.
    """

    of: Literal["job", "node", "nodes"]
    whose: str = ""
    at_s: float = 0.0


def lacks(entries: Iterable[Entry], known: Known) -> set[Lack]:
    """`entries`: those whose causes one wants to know."""
    return {lack for entry in entries for lack in _of(entry, known)}


def _of(entry: Entry, known: Known) -> Iterator[Lack]:
    said = entry.said
    if key := key_of(entry):
        yield Lack("job", key)
    if isinstance(said, CapacityChanged):
        yield Lack("node", said.key(), entry.stored_s)
    if isinstance(said, AllocationDecided) and said.cause != "-" and said.cause not in known.by_id:
        yield _where(said, entry.stored_s, known)


def _where(said: AllocationDecided, at_s: float, known: Known) -> Lack:
    """The id of a fact begins with its job's uid; that of a node's change does not."""
    uid, whole = said.cause.partition(".")[0], said.cause.count(".") > 1
    keys = [
        key for key, uids in known.uids.items() if whole and uid.isdecimal() and int(uid) in uids
    ]
    return Lack("job", keys[0]) if keys else Lack("nodes", at_s=at_s)
