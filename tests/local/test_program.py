"""Tests of `python -m services.local` as a process: stopped, killed, and started again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from services.local.cluster_spec import NodeSpec, TenantSpec
from services.local.kubelet import processes
from services.local.objects.kinds import POD
from services.local.service import local_cluster
from tests.local.builders import FOREVER, pod, python
from tests.local.conftest import QUICK

GRACE_S = 30  # the default of a pod
CLUSTER = "nodes: [{name: n, cpu: 2, memory_gib: 2}]\n"


class Program:
    def __init__(self, folder: Path) -> None:
        self.data, self.port_file, file = folder / "data", folder / "port", folder / "cluster.yaml"
        file.write_text(CLUSTER)
        self.port_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "services.local",
            "--cluster",
            str(file),
            "--data",
            str(self.data),
        ]
        self.process = subprocess.Popen(
            [*command, "--port-file", str(self.port_file)], stderr=subprocess.DEVNULL
        )
        self.home = processes.cluster_id(self.data)
        wait_for(lambda: self.port_file.exists() and self.port_file.read_text())
        self.url = f"http://127.0.0.1:{self.port_file.read_text()}/api/v1/namespaces/default/pods"

    def ask(self, method: str, path: str = "", body: object = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def run_pod(self, name: str, program: str) -> None:
        self.ask("POST", "", pod(name, python(program)))
        wait_for(lambda: self.ask("GET", f"/{name}")["status"]["phase"] == "Running")

    def running(self) -> list[int]:
        return [
            pid for pid in processes.processes_of_cluster(self.home) if processes.is_running(pid)
        ]


def wait_for(wanted, seconds=60.0):
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


@pytest.fixture
def program(tmp_path):
    started = Program(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()
    wait_for(lambda: not started.running())


def test_a_signal_ends_all_pods_and_the_program(program):
    program.run_pod("p", FOREVER)
    program.run_pod("stubborn", f"import signal; signal.signal(15, signal.SIG_IGN); {FOREVER}")
    before = time.monotonic()
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(60) == 0 and time.monotonic() - before < GRACE_S
    assert program.running() == []


def test_a_killed_cluster_leaves_no_processes(program):
    program.run_pod(
        "p",
        "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '300']); time.sleep(300)",
    )
    assert program.running()
    program.process.kill()
    wait_for(lambda: not program.running())


def test_a_cluster_that_is_started_again_is_a_new_one_with_later_revisions(program, tmp_path):
    first = int(program.ask("GET")["metadata"]["resourceVersion"])
    program.process.kill()
    program.process.wait()
    again = Program(tmp_path)
    try:
        assert int(again.ask("GET")["metadata"]["resourceVersion"]) > first
    finally:
        again.process.terminate()
        assert again.process.wait(60) == 0


def test_a_bad_cluster_file_is_an_error(tmp_path):
    (tmp_path / "c.yaml").write_text("nodes: []")
    command = [
        sys.executable,
        "-m",
        "services.local",
        "--cluster",
        str(tmp_path / "c.yaml"),
        "--data",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "there must be at least one" in done.stderr


def test_a_tenant_uses_its_cpu_and_exits_cleanly():
    tenant = subprocess.Popen([sys.executable, "-m", "services.local.tenant", "--cpu", "0.3"])
    try:
        wait_for(lambda: processes.cpu_seconds(tenant.pid) > 0.1)
        assert min(cores(tenant.pid) for _ in range(3)) < 0.45, "it rests between"
        wait_for(lambda: cores(tenant.pid) > 0.15)
        tenant.terminate()
        assert tenant.wait(60) == 0
    finally:
        tenant.kill()


def cores(pid, seconds=1.0):
    """Return the mean number of cores that a process uses; a busy machine gives it fewer."""
    began, first = time.monotonic(), processes.cpu_seconds(pid)
    time.sleep(seconds)
    return (processes.cpu_seconds(pid) - first) / (time.monotonic() - began)


async def test_tenants_of_the_cluster_file_start_and_stop(tmp_path):
    tenants = [TenantSpec(node="n", cpu=0.2, from_s=0, to_s=8.0)]
    async with local_cluster(
        [NodeSpec(name="n", cpu=1)], tmp_path / "data", tenants=tenants, settings=QUICK
    ) as cluster:
        await until(lambda: phase(cluster) == "Running")
        await until(lambda: phase(cluster) == "")


def phase(cluster):
    found = cluster.store.find(POD, "tenants", "tenant-1")
    return found["status"]["phase"] if found else ""


async def until(wanted, seconds=60.0):
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.02)
