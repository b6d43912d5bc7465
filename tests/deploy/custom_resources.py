"""Schemas of the custom resources that `deploy/` uses; a test finds misspelt fields with them.

The schemas are strict: an unknown field is an error. cert-manager and the Prometheus operator are
no part of Kubernetes, and no Python package has their types. This is written after their API
references.
"""

from __future__ import annotations

from typing import Any

import jsonschema

STRING, BOOL, STRING_LIST, STRING_MAP = (
    {"type": "string"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "additionalProperties": {"type": "string"}},
)
GO_DURATION = {"type": "string", "pattern": r"^(\d+(h|m|s))+$"}
PROMETHEUS_DURATION = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d|w|y))+$"}
LABEL_NAME = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _resource(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=_object(("name", "namespace"), name=STRING, namespace=STRING, labels=STRING_MAP),
        spec=spec,
    )


ISSUER = _object((), selfSigned=_object(()), ca=_object(("secretName",), secretName=STRING))
PRIVATE_KEY = _object(
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
    duration=GO_DURATION,
    renewBefore=GO_DURATION,
    usages=STRING_LIST,
    dnsNames=STRING_LIST,
    privateKey=PRIVATE_KEY,
    issuerRef=_object(
        ("name",), name=STRING, kind={"enum": ["Issuer", "ClusterIssuer"]}, group=STRING
    ),
)
RELABELING = _object(
    (),
    sourceLabels={"type": "array", "items": LABEL_NAME},
    targetLabel=STRING,
    separator=STRING,
    regex=STRING,
    replacement=STRING,
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep", "hashmod"]},
)
ENDPOINT = _object(
    ("port",),
    port=STRING,
    path={"type": "string", "pattern": "^/"},
    scheme={"enum": ["http", "https"]},
    interval=PROMETHEUS_DURATION,
    scrapeTimeout=PROMETHEUS_DURATION,
    relabelings={"type": "array", "items": RELABELING},
)
SERVICE_MONITOR = _object(
    ("selector", "endpoints"),
    selector=_object(("matchLabels",), matchLabels=STRING_MAP),
    endpoints={"type": "array", "items": ENDPOINT, "minItems": 1},
    namespaceSelector=_object((), any=BOOL, matchNames=STRING_LIST),
    jobLabel=STRING,
    podTargetLabels=STRING_LIST,
)
ALERT = _object(
    ("alert", "expr", "labels", "annotations"),
    alert=LABEL_NAME,
    expr=STRING,
    **{"for": PROMETHEUS_DURATION},
    labels={**STRING_MAP, "propertyNames": LABEL_NAME},
    annotations={**STRING_MAP, "propertyNames": LABEL_NAME},
)
RULE_GROUP = _object(
    ("name", "rules"),
    name=STRING,
    interval=PROMETHEUS_DURATION,
    rules={"type": "array", "items": ALERT, "minItems": 1},
)
PROMETHEUS_RULE = _object(("groups",), groups={"type": "array", "items": RULE_GROUP, "minItems": 1})
CERT_MANAGER, PROMETHEUS_OPERATOR = "cert-manager.io/v1", "monitoring.coreos.com/v1"
SCHEMAS = {
    "Issuer": _resource(CERT_MANAGER, "Issuer", ISSUER),
    "Certificate": _resource(CERT_MANAGER, "Certificate", CERTIFICATE),
    "ServiceMonitor": _resource(PROMETHEUS_OPERATOR, "ServiceMonitor", SERVICE_MONITOR),
    "PrometheusRule": _resource(PROMETHEUS_OPERATOR, "PrometheusRule", PROMETHEUS_RULE),
}
SchemaError = jsonschema.ValidationError


def validate(body: dict[str, Any]) -> None:
    """Raise `SchemaError`, or `KeyError` for a kind that no component uses."""
    jsonschema.validate(body, SCHEMAS[body["kind"]])
