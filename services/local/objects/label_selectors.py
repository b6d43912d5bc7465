"""Selectors of lists and watches.

Labels:  `a=b,c==d,e!=f,g,!h,i in (j,k),l notin (m)`. An object without the key satisfies `!=` and `notin`.
Fields:  `spec.nodeName=x,status.phase!=Running`, only over the fields that the kind declares as selectable.
Also here: the expressions of a node affinity, which have `Gt` and `Lt` besides.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from services.local.objects.bodies import Body, at_path, bad_request, labels

Test = Callable[[Mapping[str, str]], bool]
Match = Callable[[Body], bool]

COMMA = re.compile(",")
PARTS = re.compile(r",(?![^()]*\))")  # a comma outside brackets
KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
IN = re.compile(rf"^({KEY})\s+(in|notin)\s*\(([^()]*)\)$")
EQUAL = re.compile(rf"^({KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)$")
EXISTS = re.compile(rf"^(!?)\s*({KEY})$")
FIELD = re.compile(r"^([A-Za-z][\w.]*?)(==|!=|=)(.*)$")


def match_everything(_: Body) -> bool:
    return True


def label_test(key: str, operator: str, values: Iterable[str] = ()) -> Test:
    """Return the test of one term. Operators are those of a node affinity."""
    wanted = list(values)
    if operator == "In":
        return lambda found: key in found and found[key] in wanted
    if operator == "NotIn":
        return lambda found: found.get(key) not in wanted
    if operator == "Exists":
        return lambda found: key in found
    if operator == "DoesNotExist":
        return lambda found: key not in found
    if operator == "Gt":
        return lambda found: is_integer(found.get(key)) and int(found[key]) > int(wanted[0])
    if operator == "Lt":
        return lambda found: is_integer(found.get(key)) and int(found[key]) < int(wanted[0])
    raise bad_request(f"{operator!r} is not a valid selector operator")


def label_term(text: str) -> Test:
    """Return the test of a term such as `a=b`. Raises a refusal (400)."""
    if found := IN.match(text):
        key, operator, values = found.groups()
        names = [value.strip() for value in values.split(",")]
        return label_test(key, "In" if operator == "in" else "NotIn", names)
    if found := EQUAL.match(text):
        key, operator, value = found.groups()
        return label_test(key, "NotIn" if operator == "!=" else "In", [value])
    if found := EXISTS.match(text):
        negated, key = found.groups()
        return label_test(key, "DoesNotExist" if negated else "Exists")
    raise bad_request(f"unable to parse requirement: {text!r}")


def is_integer(text: str | None) -> bool:
    return bool(text and re.fullmatch(r"-?\d+", text))


def label_selector(text: str) -> Match:
    terms = [label_term(part) for part in _parts(PARTS, text)]
    if not terms:
        return match_everything
    return lambda body: all(term(labels(body)) for term in terms)


def _parts(separator: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the parts without white space around them, and without the empty ones."""
    return filter(None, map(str.strip, separator.split(text)))


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
    terms = [field_term(part, names) for part in _parts(COMMA, text)]
    if not terms:
        return match_everything
    return lambda body: all(term(body) for term in terms)


def match_both(left: Match, right: Match) -> Match:
    if left is match_everything:
        return right
    if right is match_everything:
        return left
    return lambda body: left(body) and right(body)


def term_matches(term: Body, node_labels: Mapping[str, str], node_name: str) -> bool:
    """Return True if a node satisfies every expression of a term of a node affinity. An empty term
    matches no node.
    """
    on_labels = term.get("matchExpressions") or []
    on_fields = term.get("matchFields") or []
    fields = {"metadata.name": node_name}
    for expressions, found in ((on_labels, node_labels), (on_fields, fields)):
        for each in expressions:
            if not label_test(each["key"], each["operator"], each.get("values") or ())(found):
                return False
    return bool(on_labels or on_fields)
