"""The part of the Prometheus operator's v1 types that a component uses: strict, so that a misspelt
field is found.

They are not part of Kubernetes, and in no Python package; this is written after the operator's API
reference.
"""

from __future__ import annotations

from typing import Any

import jsonschema

STRING, STRINGS = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d|w|y))+$"}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


RELABELING = _object(
    (),
    sourceLabels={
        "type": "array",
        "items": {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"},
    },
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
    interval=DURATION,
    scrapeTimeout=DURATION,
    relabelings={"type": "array", "items": RELABELING},
)
SPEC = _object(
    ("selector", "endpoints"),
    selector=_object(("matchLabels",), matchLabels=STRINGS),
    endpoints={"type": "array", "items": ENDPOINT, "minItems": 1},
    namespaceSelector=_object(
        (), any={"type": "boolean"}, matchNames={"type": "array", "items": STRING}
    ),
    jobLabel=STRING,
    podTargetLabels={"type": "array", "items": STRING},
)
SERVICE_MONITOR = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=_object(("name", "namespace"), name=STRING, namespace=STRING, labels=STRINGS),
    spec=SPEC,
)
NAME = {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}
RULE = _object(
    ("alert", "expr", "labels", "annotations"),
    alert=NAME,
    expr=STRING,
    **{"for": DURATION},
    labels={**STRINGS, "propertyNames": NAME},
    annotations={**STRINGS, "propertyNames": NAME},
)
GROUP = _object(
    ("name", "rules"),
    name=STRING,
    interval=DURATION,
    rules={"type": "array", "items": RULE, "minItems": 1},
)
PROMETHEUS_RULE = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PrometheusRule"},
    metadata=_object(("name", "namespace"), name=STRING, namespace=STRING, labels=STRINGS),
    spec=_object(("groups",), groups={"type": "array", "items": GROUP, "minItems": 1}),
)
KINDS = {"ServiceMonitor": SERVICE_MONITOR, "PrometheusRule": PROMETHEUS_RULE}
Wrong = jsonschema.ValidationError


def validate(body: dict[str, Any]) -> None:
    """Raises `Wrong`, or `KeyError` for a kind that no component uses."""
    jsonschema.validate(body, KINDS[body["kind"]])
