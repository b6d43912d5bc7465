"""Deploy Weir as deploy/README.md describes, from a copy of deploy/ with new credentials."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import yaml

from tests.cluster import strangers
from tests.cluster.cluster import KUBECTL, Cluster

DEPLOY = Path(__file__).parents[2] / "deploy"
SYSTEM = "weir-system"
IMAGES = {"weir": "WEIR_IMAGE", "weir-trainer": "WEIR_TRAINER_IMAGE"}
OWN = (
    "*.creds",
    "auth.conf",
    "jobs.json",
    "keys.json",
)  # credentials that somebody created for another cluster
PATIENCE_S = 300
FORWARD_S = 30.0


def overlay() -> str:
    return os.environ.get("OVERLAY") or "dev"


def job_namespace() -> str:
    """Return the first job namespace that the overlay allows."""
    text = (DEPLOY / "overlays" / overlay() / "kustomization.yaml").read_text("utf-8")
    named = re.search(r"WEIR_JOB_NAMESPACES=([a-z0-9-]+)", text)
    return named[1] if named else "default"


def stranger_image() -> str:
    """Return the image of the other users' pods.

    It is the image of the control plane: the nodes have it, and it has `sleep`.
    """
    listed = _read(DEPLOY / "overlays" / overlay() / "kustomization.yaml")["images"]
    (own,) = (
        f"{image['newName']}:{image['newTag']}" for image in listed if image["name"] == "weir"
    )
    return os.environ.get("WEIR_IMAGE") or str(own)


def deployed(cluster: Cluster, folder: Path, leaving: ExitStack) -> None:
    """Deploy Weir and connect the `weir` commands of `cluster` to the bus.

    Every step adds its clean-up to `leaving` before it runs.
    """
    until_free(cluster)
    shutil.copytree(DEPLOY, folder / "deploy", ignore=shutil.ignore_patterns(*OWN))
    credentials, chosen = (
        folder / "deploy" / "credentials",
        folder / "deploy" / "overlays" / overlay(),
    )
    cluster.weir("credentials", str(credentials))
    with_images(chosen / "kustomization.yaml")
    for part in (credentials, chosen, chosen / "jobs"):
        leaving.callback(
            cluster.kubectl, "delete", "-k", str(part), "--ignore-not-found", "--timeout=300s"
        )
        cluster.kubectl("apply", "-k", str(part))
    _wait(cluster)
    cluster.environ["WEIR_NATS_URL"] = _forwarded(cluster, leaving)
    cluster.environ["WEIR_NATS_CREDENTIALS"] = str(credentials / "operator.creds")


def until_free(cluster: Cluster) -> None:
    """Wait until namespaces that an earlier run deleted are gone; raise if Weir is installed."""
    for name in (SYSTEM, cluster.namespace, strangers.HOME):
        asked = ("get", "namespace", name, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
        if cluster.kubectl(*asked) == "Terminating":
            cluster.kubectl("wait", "--for=delete", f"namespace/{name}", f"--timeout={PATIENCE_S}s")
        elif name == SYSTEM and cluster.kubectl(
            "get", "namespace", name, "--ignore-not-found", "-o", "name"
        ):
            raise RuntimeError(
                f"there is a namespace {SYSTEM} already: delete it, or set WEIR_TEST_DEPLOYED=1"
            )


def with_images(kustomization: Path) -> None:
    """Replace the images in the overlay by those of the environment."""
    told = _read(kustomization)
    told["images"] = [
        _image(listed, os.environ.get(IMAGES.get(listed["name"], ""), ""))
        for listed in told["images"]
    ]
    kustomization.write_text(yaml.safe_dump(told))


def _image(listed: dict[str, str], wanted: str) -> dict[str, str]:
    """Return the image entry for `REGISTRY:PORT/NAME:TAG`; without a tag, `latest`.

    If `wanted` is empty, return the entry unchanged.
    """
    folder, slash, last = wanted.rpartition("/")
    name, _, tag = last.partition(":")
    return (
        {"name": listed["name"], "newName": folder + slash + name, "newTag": tag or "latest"}
        if wanted
        else listed
    )


def _read(kustomization: Path) -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load(kustomization.read_text("utf-8"))
    return told


def _wait(cluster: Cluster) -> None:
    limit = f"--timeout={PATIENCE_S}s"
    inside = ("-n", SYSTEM)
    cluster.kubectl(*inside, "rollout", "status", "statefulset/weir-nats", limit)
    for service in ("setup", "monitor", "allocator", "launcher"):
        cluster.kubectl(*inside, "rollout", "status", f"deployment/weir-{service}", limit)


def _forwarded(cluster: Cluster, leaving: ExitStack) -> str:
    """Start a port-forward to the bus on a free port, and return the URL of the bus."""
    words = [KUBECTL, "-n", SYSTEM, "port-forward", "svc/weir-nats", ":4222"]
    process = leaving.enter_context(
        subprocess.Popen(
            words, env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    )
    leaving.callback(process.kill)
    assert process.stdout is not None
    limit = Timer(FORWARD_S, process.kill)
    limit.start()
    said = process.stdout.readline()
    limit.cancel()
    found = re.search(r"127\.0\.0\.1:(\d+)", said)
    if found is None:
        raise RuntimeError(f"kubectl port-forward: {said or f'nothing within {FORWARD_S:g} s'}")
    return f"nats://127.0.0.1:{found[1]}"
