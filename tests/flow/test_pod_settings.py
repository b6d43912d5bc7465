"""Tests of a job's pod settings on the local cluster: variables, secrets, nodes, pod policy.

The job's program writes what it finds in its pod to files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.trial import Failed
from services.local.cluster_spec import parse_source
from shared.messages import AllocationDecided, JobFinished
from tests.flow.stage import left_behind, stage

pytestmark = pytest.mark.long

POOLS = """\
nodes:
  - {name: node-1, cpu: 4, memory_gib: 12, labels: {pool: a}}
  - name: node-2
    cpu: 4
    memory_gib: 12
    labels: {pool: b}
    taints: [{key: team, value: b}]
"""
NAMES = ("STAGE", "KEY", "S_KEY", "KEY_FILE", "WEIR_NATS_CREDS_TEXT")
PRINTS = """
import json, os, pathlib
_found = {name: os.environ.get(name) for name in %r}
_found["file"] = pathlib.Path(os.environ["KEY_FILE"]).read_text()
pathlib.Path(%r, os.environ["WEIR_TRAINER_POD"]).write_text(json.dumps(_found))
"""
SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "workers": {"start": 1, "min": 1, "max": 1},
    "ps": {"start": 1, "min": 1, "max": 1},
    "env": [
        {"name": "STAGE", "value": "train"},
        {"name": "KEY_FILE", "value": "/etc/keys/KEY"},
        {"name": "KEY", "value_from": {"secret_key_ref": {"name": "keys", "key": "KEY"}}},
    ],
    "env_from": [{"secret_ref": {"name": "keys"}, "prefix": "S_"}],
    "volumes": [{"name": "keys", "mount_path": "/etc/keys", "secret": "keys"}],
    "node_selector": {"pool": "b"},
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "labels": {"team": "b"},
    "shm_gib": 0.1,
}


@pytest.mark.filterwarnings("default")
async def test_a_job_trains_with_its_variables_and_secrets_on_the_nodes_of_its_choice(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "keys.env"
    secret.write_text("KEY=open sesame\n")
    printed = tmp_path / "printed"
    printed.mkdir()
    sources = [parse_source(f"keys={secret}", "Secret")]
    async with stage(tmp_path, places=POOLS, data_sources=sources) as scene:
        scene.more = PRINTS % (NAMES, str(printed))
        await scene.submit(**SETTINGS)
        scene.pace(0.0)
        over = await scene.hear(JobFinished)

    assert over.outcome == "succeeded", over.cause
    assert {t.node for m in scene.of(AllocationDecided) for t in m.tasks} == {"node-2"}
    found = [json.loads(file.read_text()) for file in printed.iterdir()]
    assert len(found) == 2, "a chief and a worker; a ps does not load the program"
    for each in found:
        assert each.pop("KEY_FILE").startswith(str(tmp_path))
        assert each == {
            "STAGE": "train",
            "KEY": "open sesame",
            "S_KEY": "open sesame",
            "WEIR_NATS_CREDS_TEXT": None,
            "file": "open sesame",
        }
    assert left_behind(tmp_path) == []


async def test_a_job_is_refused_by_the_policy_of_the_owner_with_every_reason(
    tmp_path: Path,
) -> None:
    policy = tmp_path / "pods.yaml"
    policy.write_text("default: {secrets: [other], node_pools: [{pool: a}]}\n")
    settings = {"WEIR_ALLOCATOR_POD_POLICY": str(policy)}
    async with stage(tmp_path, settings, POOLS) as scene:
        with pytest.raises(Failed) as refused:
            await scene.submit(**SETTINGS)
            await scene.hear(JobFinished)

    text = str(refused.value)
    for path in ("env[2].value_from", "env_from[0].secret_ref", "volumes[0].secret", "labels"):
        assert path in text, text
    assert "tolerations[0]: team:*" in text
    assert "node_selector" not in text, "it may choose among the nodes of its pools"
