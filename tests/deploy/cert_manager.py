"""The part of cert-manager's v1 types that the TLS component uses: strict, so that a misspelt field
is found.

cert-manager is not part of Kubernetes and its types are in no Python package; this is written after
its API reference.
"""

from __future__ import annotations

from typing import Any

import jsonschema

STRING, BOOL, WORDS = (
    {"type": "string"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
)
DURATION = {"type": "string", "pattern": r"^(\d+(h|m|s))+$"}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


METADATA = _object(("name", "namespace"), name=STRING, namespace=STRING, labels={"type": "object"})
ISSUER = _object((), selfSigned=_object(()), ca=_object(("secretName",), secretName=STRING))
KEY = _object(
    (),
    algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
    size={"type": "integer"},
    rotationPolicy={"enum": ["Never", "Always"]},
)
CERTIFICATE = _object(
    ("secretName", "issuerRef"),
    isCA=BOOL,
    commonName={"type": "string", "maxLength": 64},
    secretName=STRING,
    duration=DURATION,
    renewBefore=DURATION,
    usages=WORDS,
    dnsNames=WORDS,
    privateKey=KEY,
    issuerRef=_object(
        ("name",), name=STRING, kind={"enum": ["Issuer", "ClusterIssuer"]}, group=STRING
    ),
)
SPECS = {"Issuer": ISSUER, "Certificate": CERTIFICATE}


def validate(body: dict[str, Any]) -> None:
    """Raises `jsonschema.ValidationError`."""
    whole = _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "cert-manager.io/v1"},
        kind=STRING,
        metadata=METADATA,
        spec=SPECS[body["kind"]],
    )
    jsonschema.validate(body, whole)
