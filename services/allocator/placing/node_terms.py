"""The terms of a node affinity, as the scheduler reads them.

A node has to fulfil one term as a whole. A term without requirements means no node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shared.messages import NodeRequirement, NodeTerm

WHOLE_NUMBER = re.compile(r"[+-]?\d{1,18}")


def fulfils_any(name: str, labels: Mapping[str, str], terms: Sequence[NodeTerm]) -> bool:
    """Return whether the node of this name, with these labels, fulfils one of the terms."""
    return any(_fulfils(name, labels, term) for term in terms)


def _fulfils(name: str, labels: Mapping[str, str], term: NodeTerm) -> bool:
    """Return True if the node's labels and name meet all requirements of one term; no node fulfils
    an empty term.
    """
    if not term.labels and not term.fields:
        return False
    for wanted in term.labels:
        if not _is_met(labels, wanted):
            return False
    fields = {"metadata.name": name}
    return all(_is_met(fields, wanted) for wanted in term.fields)


def _is_met(there: Mapping[str, str], wanted: NodeRequirement) -> bool:
    """Return whether a requirement is met. No node meets an unknown operator: no task is put where
    its volume may be out of reach.
    """
    found = there.get(wanted.key)
    match wanted.operator:
        case "In":
            return found is not None and found in wanted.values
        case "NotIn":
            return found not in wanted.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _compares(found, wanted)
        case _:
            return False


def _compares(found: str | None, wanted: NodeRequirement) -> bool:
    """Return whether the label is above the bound, or below it; both have to be whole numbers."""
    if found is None or len(wanted.values) != 1:
        return False
    bound = wanted.values[0]
    if not WHOLE_NUMBER.fullmatch(found) or not WHOLE_NUMBER.fullmatch(bound):
        return False
    if wanted.operator == "Gt":
        return int(found) > int(bound)
    return int(found) < int(bound)
