"""Tests of control groups (version 2, or none) in temporary folders, and of process marks."""

from __future__ import annotations

import subprocess
import sys
import time

import structlog

from services.local.kubelet import processes
from services.local.kubelet import processes as processes_module
from services.local.kubelet.cgroup_manager import (
    CgroupsV2,
    Limits,
    ProcOnly,
    find_cgroup_manager,
    own_group,
)
from tests.process_guard import run_mark


def test_cgroup_version_2_files_have_the_kernels_format(tmp_path):
    groups = CgroupsV2(tmp_path / "weir", 10_000)
    groups.open_node("n", 2000)
    groups.open_pod("n", "p", Limits(cpu=300, memory=1024, cpu_request=500))
    assert (tmp_path / "weir/n/cpu.max").read_text() == "20000 10000"
    assert (tmp_path / "weir/n/p/cpu.max").read_text() == "3000 10000"
    assert (tmp_path / "weir/n/p/memory.max").read_text() == "1024"
    assert groups.joining("n", "p") == [tmp_path / "weir/n/p/cgroup.procs"]
    groups.resize("n", "p", Limits())
    assert (tmp_path / "weir/n/p/cpu.max").read_text() == "max 10000"
    (tmp_path / "weir/n/p/cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert groups.pod_seconds("n", "p") == 1.5


def test_missing_permission_for_cgroups_is_logged_once(tmp_path):
    with structlog.testing.capture_logs() as said:
        groups = find_cgroup_manager("weir-local-test", 10_000, mount=tmp_path)
        groups.open_node("n", 1000)
        groups.open_pod("n", "p", Limits(cpu=100))
    assert [line["event"] for line in said] == ["LimitsNotEnforced"] and not groups.enforced


def test_without_cgroups_usage_is_read_from_the_processes(tmp_path):
    groups = ProcOnly("test")
    groups.open_node("n", 1000)
    groups.open_pod("n", "some-uid", Limits())
    burner = marked_process("home/some-uid/main", "while True: pass")
    try:
        until(lambda: groups.pod_seconds("n", "some-uid") > 0.05)
        assert groups.memory_bytes("n", "some-uid") > 2**20
        assert groups.processes("n", "some-uid") == [burner.pid]
    finally:
        burner.kill()
        burner.wait()
    groups.close_pod("n", "some-uid")
    assert groups.node_seconds("n") > 0.05


def until(wanted):
    end = time.monotonic() + 60
    while not wanted():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def test_the_own_cgroup_is_found_by_its_controller():
    text = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/d\n"
    assert [own_group(c, text) for c in ("memory", "cpuacct", "", "pids")] == [
        "/a/b",
        "/c",
        "/d",
        "/",
    ]


def marked_process(mark, program="import time; time.sleep(60)"):
    return subprocess.Popen(
        [sys.executable, "-c", program], env={**run_mark(), processes.MARK: mark}
    )


def test_processes_of_an_earlier_start_are_killed(tmp_path):
    home = processes.cluster_id(tmp_path)
    ours, others = marked_process(f"{home}/uid/main"), marked_process("other/uid/main")
    try:
        until(
            lambda: processes.processes_of_cluster(home) and processes.processes_of_cluster("other")
        )
        processes_module.kill_leftovers(home)
        assert ours.wait(60) == -9 and others.poll() is None
    finally:
        others.kill()
        others.wait()
