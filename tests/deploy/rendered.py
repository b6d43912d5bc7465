"""The objects that `kubectl kustomize` renders from deploy/."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.programs import program_path

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBECTL = program_path("kubectl")
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
RENDERINGS = [
    "dev",
    "production",
    *(f"production+{name}" for name in COMPONENTS),
    f"dev+{'+'.join(COMPONENTS)}",
]
"""Overlays, alone and with components added."""
OWN = {"production": ("network-policies",)}
"""Components that an overlay already contains."""

Body = dict[str, Any]


@cache
def rendered(name: str) -> tuple[Body, ...]:
    """Return the objects of an overlay and of its jobs.

    `dev+tls` is the overlay `dev` with the component `tls`.
    """
    overlay, *components = name.split("+")
    added = tuple(f"components/{one}" for one in components if one not in OWN.get(overlay, ()))
    return (*kustomized([f"overlays/{overlay}"], added), *kustomized([f"overlays/{overlay}/jobs"]))


def kustomized(
    resources: Iterable[str],
    components: Iterable[str] = (),
    transformers: Iterable[str] = (),
    **more: Any,
) -> list[Body]:
    """Return what a kustomization with folders of deploy/ renders; a warning is an error."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder).resolve()
        whole = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [_from(here, DEPLOY / one) for one in resources],
            "components": [_from(here, DEPLOY / one) for one in components],
            "transformers": [_from(here, DEPLOY / one) for one in transformers],
            **more,
        }
        (here / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        done = subprocess.run(
            [KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return list(yaml.safe_load_all(done.stdout))


def _from(here: Path, path: Path) -> str:
    return os.path.relpath(path.resolve(), here)


def of(name: str, *kinds: str) -> list[Body]:
    return [body for body in rendered(name) if body["kind"] in kinds]


def named(name: str, kind: str, wanted: str) -> Body:
    """Return the one object whose name starts with `wanted`; a generated name has a digest."""
    (found,) = (b for b in of(name, kind) if b["metadata"]["name"].startswith(wanted))
    return found


def templates(name: str) -> dict[str, Body]:
    """Return the pod templates by the name of their Deployment or StatefulSet."""
    return {
        body["metadata"]["name"]: body["spec"]["template"]
        for body in of(name, "Deployment", "StatefulSet")
    }


def environ(name: str, pod: str) -> dict[str, str]:
    """Return the environment variables of a pod's container in a rendering."""
    (found,) = (b for b in of(name, "Deployment", "StatefulSet") if b["metadata"]["name"] == pod)
    return environment(rendered(name), found)


def environment(bodies: Sequence[Body], owner: Body) -> dict[str, str]:
    """Return the environment variables of a workload's container, as the kubelet sets them.

    Values from ConfigMaps are looked up; `$(NAME)` is replaced by a variable that precedes it.
    """
    (container,) = owner["spec"]["template"]["spec"]["containers"]
    found: dict[str, str] = {}
    for each in container.get("env", ()):
        if "value" in each:
            found[each["name"]] = re.sub(
                r"\$\((\w+)\)", lambda name: found[name[1]], str(each["value"])
            )
        else:
            found[each["name"]] = _looked_up(bodies, owner, each["valueFrom"])
    return found


def _looked_up(bodies: Sequence[Body], owner: Body, source: Mapping[str, Any]) -> str:
    meta = owner["metadata"]
    if "fieldRef" in source:
        return {"metadata.name": f"{meta['name']}-0", "metadata.namespace": meta["namespace"]}[
            source["fieldRef"]["fieldPath"]
        ]
    wanted = (source["configMapKeyRef"]["name"], meta["namespace"])
    maps = [b for b in bodies if b["kind"] == "ConfigMap"]
    (found,) = (b for b in maps if (b["metadata"]["name"], b["metadata"]["namespace"]) == wanted)
    return str(found["data"][source["configMapKeyRef"]["key"]])


def secrets(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every Secret that a pod mounts, with each key that it needs (empty: all keys)."""
    for volume in spec.get("volumes", ()):
        parts = [volume, *volume.get("projected", {}).get("sources", ())]
        for source in (part["secret"] for part in parts if "secret" in part):
            name = source.get("secretName") or source["name"]
            yield from ((name, item["key"]) for item in source.get("items", [{"key": ""}]))
