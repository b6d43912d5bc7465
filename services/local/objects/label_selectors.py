"""Selectors: which objects a list or a watch is about.

Labels:  `a=b,c==d,e!=f,g,!h,i in (j,k),l notin (m)`. An object without the key satisfies `!=` and `notin`.
Fields:  `spec.nodeName=x,status.phase!=Running`, only over the fields that the kind declares as selectable.
Also here: the expressions of a node affinity, which have `Gt` and `Lt` besides.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from services.local.objects.api_errors import bad_request
from services.local.objects.bodies import Body, at_path, labels

Test = Callable[[Mapping[str, str]], bool]
Match = Callable[[Body], bool]

PARTS = re.compile(r",(?![^()]*\))")  # a comma outside brackets
KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
IN = re.compile(rf"^({KEY})\s+(in|notin)\s*\(([^()]*)\)$")
EQUAL = re.compile(rf"^({KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)$")
EXISTS = re.compile(rf"^(!?)\s*({KEY})$")
FIELD = re.compile(r"^([A-Za-z][\w.]*?)(==|!=|=)(.*)$")


def match_everything(_: Body) -> bool:
    return True


def label_test(key: str, operator: str, values: Iterable[str] = ()) -> Test:
    """One term; the operators are spelt as in a node affinity."""
    wanted = list(values)
    tests: dict[str, Test] = {
        "In": lambda found: key in found and found[key] in wanted,
        "NotIn": lambda found: found.get(key) not in wanted,
        "Exists": lambda found: key in found,
        "DoesNotExist": lambda found: key not in found,
        "Gt": lambda found: (
            parse_integer(found.get(key)) is not None and int(found[key]) > int(wanted[0])
        ),
        "Lt": lambda found: (
            parse_integer(found.get(key)) is not None and int(found[key]) < int(wanted[0])
        ),
    }
    if operator not in tests:
        raise bad_request(f"{operator!r} is not a valid selector operator")
    return tests[operator]


def parse_integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def label_term(text: str) -> Test:
    if found := IN.match(text):
        values = [value.strip() for value in found[3].split(",")]
        return label_test(found[1], "In" if found[2] == "in" else "NotIn", values)
    if found := EQUAL.match(text):
        return label_test(found[1], "NotIn" if found[2] == "!=" else "In", [found[3]])
    if found := EXISTS.match(text):
        return label_test(found[2], "DoesNotExist" if found[1] else "Exists")
    raise bad_request(f"unable to parse requirement: {text!r}")


def label_selector(text: str) -> Match:
    terms = [label_term(part.strip()) for part in PARTS.split(text) if part.strip()]
    return (lambda body: all(term(labels(body)) for term in terms)) if terms else match_everything


def field_term(text: str, allowed: Iterable[str]) -> Match:
    found = FIELD.match(text)
    if found is None:
        raise bad_request(f"invalid field selector: {text!r}; can't understand it")
    path, operator, value = found.groups()
    if path not in allowed:
        raise bad_request(f"field label not supported: {path}")
    same: Match = lambda body: field_text(at_path(body, path)) == value  # noqa: E731  # it reads better
    return (lambda body: not same(body)) if operator == "!=" else same


def field_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def field_selector(text: str, allowed: Iterable[str]) -> Match:
    names = ["metadata.name", "metadata.namespace", *allowed]
    terms = [field_term(part.strip(), names) for part in text.split(",") if part.strip()]
    return (lambda body: all(term(body) for term in terms)) if terms else match_everything


def match_both(left: Match, right: Match) -> Match:
    if left is match_everything or right is match_everything:
        return right if left is match_everything else left
    return lambda body: left(body) and right(body)


def term_matches(term: Body, node_labels: Mapping[str, str], node_name: str) -> bool:
    """A term of a node affinity: every expression on labels and every one on fields; an empty one
    never.
    """
    on_labels, on_fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    fields = {"metadata.name": node_name}
    pairs = [(e, node_labels) for e in on_labels] + [(e, fields) for e in on_fields]
    return bool(pairs) and all(
        label_test(e["key"], e["operator"], e.get("values") or ())(found) for e, found in pairs
    )
