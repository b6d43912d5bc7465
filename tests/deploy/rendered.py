"""What `kubectl kustomize` makes of deploy/, as plain objects."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.programs import program_path

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBECTL = program_path("kubectl")
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
RENDERINGS = ["dev", "production", *(f"production+{name}" for name in COMPONENTS), f"dev+{'+'.join(COMPONENTS)}"]
"""Overlays, alone and with components added."""
OWN = {"production": ("network-policies",)}
"""Components that an overlay has already."""

Body = dict[str, Any]


@cache
def rendered(name: str) -> tuple[Body, ...]:
    """The objects of an overlay (`dev`) or of one with components added (`dev+tls`); a warning is an error."""
    overlay, *components = name.split("+")
    added = [one for one in components if one not in OWN.get(overlay, ())]
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder).resolve()
        whole = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [_from(here, DEPLOY / "overlays" / overlay)],
            "components": [_from(here, DEPLOY / "components" / one) for one in added],
        }
        (here / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return tuple(yaml.safe_load_all(done.stdout))


def _from(here: Path, path: Path) -> str:
    return os.path.relpath(path.resolve(), here)


def of(name: str, *kinds: str) -> list[Body]:
    return [body for body in rendered(name) if body["kind"] in kinds]


def named(name: str, kind: str, wanted: str) -> Body:
    """The one object; a generated name may have its digest behind it."""
    (found,) = (b for b in of(name, kind) if b["metadata"]["name"].startswith(wanted))
    return found


def templates(name: str) -> dict[str, Body]:
    """The pod templates, by the name of what they belong to."""
    return {body["metadata"]["name"]: body["spec"]["template"] for body in of(name, "Deployment", "StatefulSet", "Job")}


def environ(name: str, pod: str) -> dict[str, str]:
    """The environment that a pod's container is given, ConfigMaps looked up; fields of the pod left out."""
    (container,) = templates(name)[pod]["spec"]["containers"]
    return {each["name"]: value for each in container.get("env", ()) if (value := _value(name, each)) is not None}


def _value(name: str, given: Mapping[str, Any]) -> str | None:
    if "value" in given:
        return str(given["value"])
    source = given["valueFrom"].get("configMapKeyRef")
    if source is None:
        return None
    (found,) = (b for b in of(name, "ConfigMap") if b["metadata"]["name"] == source["name"])
    return str(found["data"][source["key"]])


def secrets(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every Secret that a pod mounts, with the keys it needs (empty: all)."""
    for volume in spec.get("volumes", ()):
        parts = [volume, *volume.get("projected", {}).get("sources", ())]
        for source in (part["secret"] for part in parts if "secret" in part):
            name = source.get("secretName") or source["name"]
            yield from ((name, item["key"]) for item in source.get("items", [{"key": ""}]))
