"""Does a node fulfil the terms of a node affinity? As the scheduler reads them: one term has to be
fulfilled as a whole, and a term without requirements means no node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shared.messages import NodeRequirement, NodeTerm

WHOLE_NUMBER = re.compile(r"[+-]?\d{1,18}")


def fulfils_any(name: str, labels: Mapping[str, str], terms: Sequence[NodeTerm]) -> bool:
    return any(_fulfils(name, labels, term) for term in terms)


def _fulfils(name: str, labels: Mapping[str, str], term: NodeTerm) -> bool:
    if not term.labels and not term.fields:
        return False
    fields = {"metadata.name": name}
    return all(_is_met(labels, each) for each in term.labels) and all(
        _is_met(fields, each) for each in term.fields
    )


def _is_met(there: Mapping[str, str], wanted: NodeRequirement) -> bool:
    """An operator that is not known is met by no node: no task is put where its volume may be out
    of reach.
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
    numbers = (found or "", *wanted.values)
    if len(numbers) != 2 or not all(WHOLE_NUMBER.fullmatch(number) for number in numbers):
        return False
    here, bound = int(numbers[0]), int(numbers[1])
    return here > bound if wanted.operator == "Gt" else here < bound
