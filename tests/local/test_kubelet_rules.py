"""Tests of the kubelet's pure rules: the cleanup of logs, actions for a pod, and its status."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.local.kubelet import pod_status
from services.local.kubelet.cgroup_manager import quota_of, shares_of, weight_of
from services.local.kubelet.container import CannotLaunch, build_launch, write_files
from services.local.kubelet.kubelet import prune_pod_logs
from services.local.kubelet.pod_status import PodAction, pod_action
from services.local.objects.bodies import condition
from tests.local.builders import container, node, pod


def printed(folder: Path, uid: str, at_s: float, size: int = 10) -> None:
    file = folder / f"default_digits-worker-1_{uid}" / "tensorflow.log"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * size)
    os.utime(file, (at_s, at_s))


def left(folder: Path) -> list[str]:
    return sorted(each.name.rpartition("_")[2] for each in folder.iterdir())


def test_the_oldest_logs_are_deleted_and_never_those_of_a_running_pod(tmp_path: Path) -> None:
    for number in range(6):
        printed(tmp_path, f"uid-{number}", 100.0 + number)

    prune_pod_logs(tmp_path, {"uid-0"}, most=3)

    assert left(tmp_path) == ["uid-0", "uid-3", "uid-4", "uid-5"]


def test_the_total_size_of_logs_is_bounded(tmp_path: Path) -> None:
    for number in range(4):
        printed(tmp_path, f"uid-{number}", 100.0 + number, size=1000)

    prune_pod_logs(tmp_path, {}, most_bytes=2500)

    assert left(tmp_path) == ["uid-2", "uid-3"]


def test_log_cleanup_without_logs_does_nothing(tmp_path: Path) -> None:
    prune_pod_logs(tmp_path / "none", {})


BASE = {"PATH": "/bin"}


def launch(body, lookup=lambda *_: None):
    main = body["spec"]["containers"][0]
    return build_launch(body, main, BASE, "/the/python", "/data", lookup, Path("/volumes"))


def leaving(body):
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def over(body):
    return {**body, "status": {"phase": "Failed"}}


@pytest.mark.parametrize(
    ("body", "gone", "alive", "order"),
    [
        (pod("p"), False, False, PodAction.START),
        (pod("p"), False, True, PodAction.NOTHING),
        (pod("p"), True, True, PodAction.KILL),
        (pod("p"), True, False, PodAction.NOTHING),
        (leaving(pod("p")), False, True, PodAction.STOP),
        (leaving(pod("p")), False, False, PodAction.TAKE_AWAY),
        (over(pod("p")), False, False, PodAction.NOTHING),
        (pod("p", container(cpu="2")), False, True, PodAction.RESIZE),
    ],
)
def test_each_case_has_one_pod_action(body, gone, alive, order):
    assert pod_action(body, gone, alive, {"main": {}}) is order


def test_python_is_this_interpreter_and_variables_are_expanded():
    body = pod(
        "p",
        container(
            ["python3", "$(WHO)", "$$(WHO)", "$(NOBODY)"],
            args=["$(TWICE)"],
            env=[
                {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "TWICE", "value": "$(WHO)$(WHO)"},
            ],
        ),
    )
    made = launch(body)
    assert made.command == ["/the/python", "p", "$(WHO)", "$(NOBODY)", "pp"]
    assert (
        made.environment == {"PATH": "/bin", "WHO": "p", "TWICE": "pp"} and made.folder == "/data"
    )


def test_field_resource_and_key_references_are_in_the_environment():
    env = [
        {"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['role']"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "CPU",
            "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
        },
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {
            "name": "MAYBE",
            "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
        },
    ]
    made = launch(
        pod("p", container(limit="1500m", env=env), labels={"role": "ps"}),
        lambda kind, name: {"k": b"found"} if kind == "ConfigMap" else None,
    )
    assert made.environment == {
        "PATH": "/bin",
        "ROLE": "ps",
        "IP": "127.0.0.1",
        "CPU": "1500",
        "KEY": "found",
    }


def test_all_values_of_an_object_are_variables_and_env_comes_after_them():
    sources = [
        {"configMapRef": {"name": "c"}, "prefix": "C_"},
        {"secretRef": {"name": "s"}},
        {"secretRef": {"name": "none", "optional": True}},
    ]
    values = {"c": {"A": b"1"}, "s": {"B": b"2", "D": b"3"}}
    env = [{"name": "B", "value": "own"}, {"name": "E", "value": "$(C_A)$(D)"}]
    made = launch(
        pod("p", container(env=env, envFrom=sources)), lambda kind, name: values.get(name)
    )
    assert made.environment == {"PATH": "/bin", "C_A": "1", "B": "own", "D": "3", "E": "13"}
    with pytest.raises(CannotLaunch, match='secret "gone" not found'):
        launch(pod("p", container(envFrom=[{"secretRef": {"name": "gone"}}])))


def test_a_variable_with_a_path_of_a_volume_names_its_folder_on_this_machine():
    volumes = [
        {"name": "keys", "secret": {"secretName": "s"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "data", "hostPath": {"path": "/data"}},
    ]
    paths = {"keys": "/etc/keys", "scratch": "/scratch", "shm": "/dev/shm", "data": "/data"}
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    env = [
        {"name": "KEY", "value": "/etc/keys/key.json"},
        {"name": "KEYS", "value": "/etc/keys"},
        {"name": "SCRATCH", "value": "/scratch/x"},
        {"name": "SHM", "value": "/dev/shm/x"},
        {"name": "DATA", "value": "/data/x"},
        {"name": "OTHER", "value": "/etc/keysmith"},
    ]
    made = launch(pod("p", container(env=env, volumeMounts=mounts), volumes=volumes))
    assert made.environment == {
        "PATH": "/bin",
        "KEY": "/volumes/keys/key.json",
        "KEYS": "/volumes/keys",
        "SCRATCH": "/volumes/scratch/x",
        "SHM": "/dev/shm/x",
        "DATA": "/data/x",
        "OTHER": "/etc/keysmith",
    }


def test_the_files_of_a_secret_are_written_and_a_missing_one_is_an_error(tmp_path):
    items = [{"key": "a", "path": "deep/x"}]
    volumes = [
        {"name": "all", "secret": {"secretName": "s", "defaultMode": 0o440}},
        {"name": "one", "configMap": {"name": "s", "items": items}},
        {"name": "none", "secret": {"secretName": "gone", "optional": True}},
    ]
    body = pod("p", volumes=volumes)
    values = {"a": b"1", "b": bytes([0, 255])}
    for _ in range(2):  # a restarted container also finds the files
        write_files(body, tmp_path, lambda kind, name: values if name == "s" else None)
    assert (tmp_path / "all" / "b").read_bytes() == bytes([0, 255])
    assert (tmp_path / "all" / "a").stat().st_mode & 0o777 == 0o440
    assert (tmp_path / "one" / "deep" / "x").read_text() == "1"
    assert [*(tmp_path / "none").iterdir()] == []
    with pytest.raises(CannotLaunch, match='volume v: secret "gone" not found'):
        missing = [{"name": "v", "secret": {"secretName": "gone"}}]
        write_files(pod("p", volumes=missing), tmp_path, lambda *_: None)


def test_a_missing_key_or_command_is_an_error():
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    with pytest.raises(CannotLaunch, match="s/k not found"):
        launch(pod("p", container(env=env)))
    with pytest.raises(CannotLaunch, match="no command"):
        launch(pod("p", {"name": "main", "image": "i"}))


@pytest.mark.parametrize(
    ("returncode", "oom", "code", "reason", "signal"),
    [
        (0, False, 0, "Completed", None),
        (3, False, 3, "Error", None),
        (-9, False, 137, "Error", 9),
        (-9, True, 137, "OOMKilled", 9),
        (143, False, 143, "Error", 15),
    ],
)
def test_an_exit_is_reported_as_in_kubernetes(returncode, oom, code, reason, signal):
    end = pod_status.container_exit(returncode, 0.0, 1.0, oom)
    assert (end.code, end.reason, end.signal) == (code, reason, signal)


def test_the_phase_follows_the_containers():
    done, bad = pod_status.container_exit(0, 0, 1, False), pod_status.container_exit(1, 0, 1, False)
    one, two = (
        pod_status.new_progress(container()),
        pod_status.new_progress({**container(), "name": "b"}),
    )
    assert pod_status.phase_of([one, two]) == "Pending"
    one.started_s = 1.0
    assert pod_status.phase_of([one, two]) == "Running"
    one.end, two.end = done, bad
    assert pod_status.phase_of([one, two]) == "Failed"
    two.end = done
    assert pod_status.phase_of([one, two]) == "Succeeded"


def test_ready_is_true_only_while_every_container_runs():
    body, progress = pod("p"), pod_status.new_progress(container())
    progress.started_s = 1.0
    running = pod_status.with_progress(body, [], [progress], 2.0)
    assert condition(running, "Ready")["status"] == "True"
    progress.end = pod_status.container_exit(0, 1, 2, False)
    ended = pod_status.with_progress(running, [], [progress], 3.0)
    assert condition(ended, "Ready")["reason"] == "PodCompleted"


def test_a_resize_is_deferred_or_infeasible():
    small, body = node("n", cpu="2"), pod("p", container(cpu="1500m"), nodeName="n")
    other = pod("q", container(cpu="1"), nodeName="n", meta={"uid": "other"})
    body["status"] = {
        "containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "500m"}}}]
    }
    assert (
        pod_status.resize_failure(body, small, pod_status.free_for(body, small, [body, other]))
        == "Deferred"
    )
    assert pod_status.resize_failure(body, small, pod_status.free_for(body, small, [body])) == ""
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3"
    assert (
        pod_status.resize_failure(body, small, pod_status.free_for(body, small, [body]))
        == "Infeasible"
    )


def test_a_cpu_quota_has_a_period_of_10_ms_unless_it_would_be_too_small():
    assert quota_of(300, 10_000) == (3_000, 10_000)
    assert quota_of(2500, 10_000) == (25_000, 10_000)
    assert quota_of(50, 10_000) == (1_000, 20_000)
    assert quota_of(0, 10_000)[0] == 1_000


def test_weights_keep_the_order_of_requests():
    assert shares_of(1000) == 1024 and shares_of(0) == 2
    assert (
        weight_of(2) == 1
        and weight_of(262144) == 10_000
        and weight_of(shares_of(2000)) > weight_of(shares_of(1000))
    )
