"""What may be a name: a DNS-1123 subdomain, for services a DNS-1035 label; and label keys and
values.
"""

import re

from services.local.objects.bodies import Body, meta
from services.local.objects.kinds import Kind

Causes = list[tuple[str, str]]

LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
SERVICE_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
QUALIFIED = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

RULES = {
    "Namespace": (
        LABEL,
        63,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'",
    ),
    "Service": (
        SERVICE_LABEL,
        63,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', and start "
        "with an alphabetic character",
    ),
}
OTHERWISE = (
    SUBDOMAIN,
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
)


def name_causes(kind: Kind, name: str) -> Causes:
    if not name:
        return [("metadata.name", "Required value: name or generateName is required")]
    pattern, longest, why = RULES.get(kind.name, OTHERWISE)
    if len(name) > longest:
        return [("metadata.name", f'Invalid value: "{name}": must be no more than {longest} bytes')]
    return [] if pattern.match(name) else [("metadata.name", f'Invalid value: "{name}": {why}')]


def key_is_good(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return (
        (not slash or bool(SUBDOMAIN.match(prefix)))
        and len(name) <= 63
        and bool(QUALIFIED.match(name))
    )


def value_is_good(value: object) -> bool:
    return (
        isinstance(value, str) and len(value) <= 63 and (not value or bool(QUALIFIED.match(value)))
    )


def label_causes(body: Body) -> Causes:
    found = (meta(body).get("labels") or {}).items()
    keys = [
        ("metadata.labels", f'Invalid value: "{key}": not a qualified name')
        for key, _ in found
        if not key_is_good(key)
    ]
    bad = [
        ("metadata.labels", f'Invalid value: "{value}": not a valid label')
        for _, value in found
        if not value_is_good(value)
    ]
    return keys + bad
