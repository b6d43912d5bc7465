"""Tests of `make test-cluster` on the stand-in: what it waits for before it deploys, its images."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.local.service import Cluster as StandIn
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import DEPLOY, SYSTEM, until_free, with_images
from tests.local.builders import FOREVER, pod, python

SLOW_TO_END = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True);"
    f" {FOREVER}"
)


@pytest.fixture
def there(cluster: StandIn, tmp_path: Path) -> Cluster:
    """Return the stand-in as a cluster of `make test-cluster`."""
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": cluster.url}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": ""}}],
        "current-context": "here",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    environ = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    return Cluster(tmp_path, "weir:dev", "default", environ)


async def test_a_terminating_namespace_is_awaited_and_one_in_use_is_refused(
    there: Cluster,
) -> None:
    def namespace_with_a_pod() -> None:
        body = pod("slow", python(SLOW_TO_END), terminationGracePeriodSeconds=2)
        body["metadata"]["namespace"] = SYSTEM
        there.kubectl(
            "apply",
            "-f",
            "-",
            said={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}},
        )
        there.kubectl("apply", "-f", "-", said=body)
        there.kubectl("wait", "-n", SYSTEM, "--for=condition=Ready", "pod/slow", "--timeout=60s")

    await asyncio.to_thread(until_free, there)
    await asyncio.to_thread(namespace_with_a_pod)
    with pytest.raises(RuntimeError, match="there is a namespace"):
        await asyncio.to_thread(until_free, there)
    await asyncio.to_thread(there.kubectl, "delete", "namespace", SYSTEM, "--wait=false")
    await asyncio.to_thread(until_free, there)
    assert (
        await asyncio.to_thread(there.kubectl, "get", "namespace", SYSTEM, "--ignore-not-found")
        == ""
    )


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_custom_images_replace_those_of_the_overlay(
    overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_IMAGE", "registry.example:5000/weir:mine")
    file = tmp_path / "kustomization.yaml"
    file.write_text((DEPLOY / "overlays" / overlay / "kustomization.yaml").read_text())
    before = {image["name"]: image for image in yaml.safe_load(file.read_text())["images"]}
    with_images(file)
    after = {image["name"]: image for image in yaml.safe_load(file.read_text())["images"]}
    mine = {"name": "weir", "newName": "registry.example:5000/weir", "newTag": "mine"}
    assert after == {**before, "weir": mine}
