"""Tests of pods that run as real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from services.local.controllers import new_system_object
from services.local.kubelet import processes
from services.local.kubelet.pod_worker import PodWorker
from services.local.objects.admission import new_pod
from services.local.objects.bodies import node_of
from services.local.objects.kinds import NODE, POD
from services.local.service import local_cluster
from tests.local.builders import FOREVER, container, node, pinned_pod, pod, python
from tests.local.conftest import NODES, QUICK

BURN = "while True: pass"
RESIZES = 10
GAPS = """import time
longest, last = 0.0, time.monotonic()
while True:
    now = time.monotonic()
    if now - last > min(longest, 1.0):
        longest = max(longest, now - last)
        print(now - last, flush=True)
    last = now"""
"""A program that prints its pauses in s: each that is longer than all before it, or than 1 s."""


GRACE_S = 30  # the default of a pod


async def until(wanted, seconds=60):
    async with asyncio.timeout(seconds):
        while not wanted():
            await asyncio.sleep(0.02)


def terminated(body, index=0):
    return body["status"]["containerStatuses"][index]["state"]["terminated"]


def granted(body):
    return body["status"]["containerStatuses"][0]["resources"]


def conditions(body):
    return {c["type"]: c["status"] for c in body["status"]["conditions"]}


async def test_a_pod_runs_writes_a_log_and_succeeds(kube):
    program = (
        "import os, sys; print(os.environ['WHO'], os.environ['ROLE'], sys.argv[1]); import"
        " services.local"
    )
    env = [
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['role']"}}},
    ]
    await kube.create(pod("p", python(program, "hello", env=env), labels={"role": "ps"}))
    done = await kube.until_phase("p", "Succeeded")
    assert (terminated(done)["exitCode"], terminated(done)["reason"]) == (0, "Completed")
    assert await kube.logs("p") == "p ps hello\n"
    assert (
        done["status"]["startTime"]
        and done["status"]["podIP"] == done["status"]["hostIP"] == "127.0.0.1"
    )


async def test_a_running_pod_is_ready(kube):
    await kube.create(pod("p", python(FOREVER)))
    running = await kube.until_phase("p", "Running")
    assert conditions(running)["Ready"] == conditions(running)["PodScheduled"] == "True"
    assert running["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]


async def test_a_container_has_a_minimal_environment(kube, monkeypatch):
    await kube.create(pod("p", python("import os; print(sorted(os.environ))")))
    await kube.until_phase("p", "Succeeded")
    known = {
        "PATH",
        "HOME",
        "LANG",
        "LC_CTYPE",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "TMPDIR",
        "PWD",
        "OLDPWD",
        "_",
        "SHLVL",
        processes.MARK,
    }
    assert set(eval(await kube.logs("p"))) <= known


async def test_temporary_files_are_deleted_with_their_pod(kube, tmp_path):
    program = "import os, tempfile; print(tempfile.mkdtemp(), flush=True); os.kill(os.getpid(), 9)"
    await kube.create(pod("p", python(program)))
    await kube.until_phase("p", "Failed")
    made = Path((await kube.logs("p")).strip())
    assert made.is_relative_to(tmp_path)
    await until(lambda: not made.exists())


async def test_a_failed_pod_has_its_exit_code(kube):
    await kube.create(pod("p", python("raise SystemExit(7)")))
    failed = await kube.until_phase("p", "Failed")
    assert (terminated(failed)["exitCode"], terminated(failed)["reason"]) == (7, "Error")


async def test_a_killed_pod_has_its_signal(kube):
    await kube.create(pod("p", python("import os; os.kill(os.getpid(), 9)")))
    failed = await kube.until_phase("p", "Failed")
    assert (terminated(failed)["exitCode"], terminated(failed)["signal"]) == (137, 9)


async def test_a_missing_command_is_a_start_error(kube):
    await kube.create(pod("p", container(["no-such-program"])))
    failed = await kube.until_phase("p", "Failed")
    assert (
        terminated(failed)["reason"] == "StartError"
        and "not found" in terminated(failed)["message"]
    )


async def test_a_graceful_deletion_lets_the_process_finish(kube):
    program = """
import signal, sys, time
signal.signal(15, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("up", flush=True)
time.sleep(60)
"""
    await kube.create(pod("p", python(program)))
    running = await kube.until_phase("p", "Running")
    file = kube.cluster.context.log_file(running, "main")
    await until(lambda: "up" in file.read_text())
    await kube.v1.delete_namespaced_pod("p", "default")
    await kube.until_gone("p")
    assert file.read_text() == "up\nbye\n"


async def test_watchers_see_the_reason_of_pods_that_end_with_the_cluster(kube):
    ends = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143))"
    program = f"{ends}; print(1, flush=True); time.sleep(600)"
    await kube.create(pod("p", python(program)))
    running = await kube.until_phase("p", "Running")
    file = kube.cluster.context.log_file(running, "main")
    await until(lambda: "1" in file.read_text())
    kubelet, patient = kube.cluster.kubelet, replace(kube.cluster.context.settings, shutdown_s=60.0)
    kubelet.context = replace(kubelet.context, settings=patient)  # the pod exits by itself
    await kubelet.stop_all()
    ended = await kube.until_phase("p", "Failed")
    assert (ended["status"]["reason"], ended["status"]["message"]) == (
        "Terminated",
        "the cluster was stopped",
    )
    assert terminated(ended)["exitCode"] == 143


async def test_a_process_is_killed_after_the_grace_period(kube):
    await kube.create(
        pod(
            "p",
            python(
                f"import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); {FOREVER}"
            ),
        )
    )
    body = await kube.until_phase("p", "Running")
    await until(kube.cluster.context.log_file(body, "main").read_text)
    before = time.monotonic()
    await kube.v1.delete_namespaced_pod("p", "default", grace_period_seconds=1)
    await kube.until_gone("p")
    assert 0.8 < time.monotonic() - before < GRACE_S / 3


async def test_a_forced_deletion_kills_at_once(kube):
    await kube.create(pod("p", python(FOREVER)))
    uid = (await kube.until_phase("p", "Running"))["metadata"]["uid"]
    await kube.v1.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    await until(lambda: not processes.processes_of_cluster(uid), GRACE_S / 3)


async def test_the_whole_process_tree_of_a_pod_is_killed(kube):
    """A child, a child in its own session, and an orphan in its own session."""
    tree = """
import subprocess, sys, time
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["setsid", "sleep", "300"])
subprocess.Popen(["sh", "-c", "setsid sleep 300 & exit 0"])
print("grown", flush=True)
time.sleep(300)
"""
    await kube.create(pod("p", python(tree), terminationGracePeriodSeconds=1))
    body = await kube.until_phase("p", "Running")
    await until(lambda: "grown" in kube.cluster.context.log_file(body, "main").read_text())
    uid = body["metadata"]["uid"]
    await until(lambda: len(processes.processes_of_cluster(uid)) >= 4)
    await kube.v1.delete_namespaced_pod("p", "default")
    await kube.until_gone("p")
    assert [pid for pid in processes.processes_of_cluster(uid) if processes.is_running(pid)] == []


async def test_orphaned_processes_of_a_container_are_killed_at_its_end(kube):
    await kube.create(
        pod("p", python("import subprocess; subprocess.Popen(['setsid', 'sleep', '300'])"))
    )
    uid = (await kube.until_phase("p", "Succeeded"))["metadata"]["uid"]
    assert [pid for pid in processes.processes_of_cluster(uid) if processes.is_running(pid)] == []


async def test_init_containers_run_first_and_in_order(kube, tmp_path):
    file = tmp_path / "order"
    write = f"open({str(file)!r}, 'a').write"
    inits = [{**python(f"{write}('1')"), "name": "one"}, {**python(f"{write}('2')"), "name": "two"}]
    await kube.create(pod("p", python(f"{write}('3')"), initContainers=inits))
    await kube.until_phase("p", "Succeeded")
    assert file.read_text() == "123"
    await kube.create(
        pod("q", python("pass"), initContainers=[{**python("raise SystemExit(1)"), "name": "one"}])
    )
    assert conditions(await kube.until_phase("q", "Failed"))["Ready"] == "False"


async def test_a_container_is_restarted_by_the_restart_policy(kube, tmp_path):
    file = tmp_path / "runs"
    count = (
        f"f = open({str(file)!r}, 'a+'); f.write('x'); f.seek(0); raise SystemExit(len(f.read())"
        " < 3)"
    )
    await kube.create(pod("p", python(count), restartPolicy="OnFailure"))
    done = await kube.until_phase("p", "Succeeded")
    assert done["status"]["containerStatuses"][0]["restartCount"] == 2


async def test_a_deadline_ends_a_pod(kube):
    await kube.create(
        pod("p", python(FOREVER), activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
    )
    assert (await kube.until_phase("p", "Failed"))["status"]["reason"] == "DeadlineExceeded"


async def test_an_unschedulable_pod_waits_and_runs_when_there_is_room(kube):
    await kube.create(pod("first", python(FOREVER, cpu="3"), terminationGracePeriodSeconds=1))
    await kube.until_phase("first", "Running")
    await kube.create(pod("second", python(FOREVER, cpu="2")))
    waiting = await kube.until("second", lambda body: conditions_of(body).get("PodScheduled"))
    told = next(c for c in waiting["status"]["conditions"] if c["type"] == "PodScheduled")
    assert (told["status"], told["reason"]) == (
        "False",
        "Unschedulable",
    ) and "3 Insufficient cpu" in told["message"]
    await kube.v1.delete_namespaced_pod("first", "default")
    assert (await kube.until_phase("second", "Running"))["spec"]["nodeName"] == "big"


def conditions_of(body):
    return {c["type"]: c["status"] for c in body["status"].get("conditions") or []}


async def test_a_full_node_refuses_a_pod_bound_without_the_scheduler(kube):
    await kube.create(pod("p", python(FOREVER, cpu="2"), nodeName="small-1"))
    assert (await kube.until_phase("p", "Failed"))["status"]["reason"] == "OutOfcpu"


async def test_logs_can_be_limited_and_followed(kube):
    await kube.create(
        pod(
            "p",
            python(
                "for i in range(5): print(i, flush=True)\nimport time; time.sleep(0.5);"
                " print('last')"
            ),
        )
    )
    await kube.until_phase("p", "Running")
    assert (await kube.logs("p", follow=True)).splitlines()[-1] == "last"
    assert await kube.logs("p", tail_lines=2) == "4\nlast\n"
    for unknown in ({"container": "x"}, {"since_seconds": 5}, {"timestamps": True}):
        refused = await kube.refusal(kube.v1.read_namespaced_pod_log("p", "default", **unknown))
        assert refused == (400, "BadRequest")


async def test_an_eviction_is_a_graceful_deletion(kube):
    await kube.create(pod("p", python(FOREVER)))
    await kube.until_phase("p", "Running")
    evict = kube.v1.create_namespaced_pod_eviction_without_preload_content
    async with await evict("p", "default", {"metadata": {"name": "p"}}) as answer:
        assert answer.status == 201
    await kube.until_gone("p")


async def test_an_evicted_pod_has_a_disruption_condition(kube):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
    await kube.create(pod("p", python(f"{deaf}; {FOREVER}"), terminationGracePeriodSeconds=600))
    await kube.until_phase("p", "Running")
    while "deaf" not in await kube.logs("p"):
        await asyncio.sleep(0.05)
    evict = kube.v1.create_namespaced_pod_eviction_without_preload_content
    async with await evict("p", "default", {"metadata": {"name": "p"}}) as answer:
        assert answer.status == 201
    told = (await kube.until("p", lambda b: "deletionTimestamp" in b["metadata"]))["status"][
        "conditions"
    ]
    (why,) = [c for c in told if c["type"] == "DisruptionTarget"]
    assert (why["status"], why["reason"]) == ("True", "EvictionByEvictionAPI")
    await kube.v1.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    await kube.until_gone("p")


async def test_a_pod_waits_for_its_config_map(kube):
    env = [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    await kube.create(pod("p", python("import os; print(os.environ['K'])", env=env)))
    await kube.until(
        "p", lambda b: "CreateContainerConfigError" in str(b["status"].get("containerStatuses"))
    )
    await kube.v1.create_namespaced_config_map(
        "default", {"metadata": {"name": "c"}, "data": {"k": "v"}}
    )
    await kube.until_phase("p", "Succeeded")
    assert await kube.logs("p") == "v\n"


# ---- limits


def needs_groups(kube):
    if not kube.cluster.context.cgroups.enforced:
        pytest.skip("this machine does not let us make control groups")


async def cores(kube, name, seconds=0.8):
    """Return the mean number of cores that a pod uses within `seconds`."""
    async with aiohttp.ClientSession(kube.cluster.url) as session:

        async def used():
            return (await (await session.get("/debug/cpu-seconds")).json())["pods"][
                f"default/{name}"
            ]

        start, first = time.monotonic(), await used()
        await asyncio.sleep(seconds)
        return (await used() - first) / (time.monotonic() - start)


async def uses_more(kube, name, than):
    """Wait until the pod uses more than `than` cores; on a busy machine this takes longer."""
    async with asyncio.timeout(60):
        while await cores(kube, name) <= than:
            pass


async def resize(kube, name, cpu):
    wanted = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    change = {"spec": {"containers": [{"name": "main", "resources": wanted}]}}
    return kube.plain(
        await kube.v1.patch_namespaced_pod_resize(
            name, "default", change, _content_type="application/strategic-merge-patch+json"
        )
    )


async def test_a_cpu_limit_is_enforced_and_resized_at_once(kube):
    needs_groups(kube)
    await kube.create(pod("p", python(BURN, cpu="200m", limit="200m")))
    await kube.until_phase("p", "Running")
    assert min([await cores(kube, "p") for _ in range(3)]) < 0.3
    resized = await resize(kube, "p", "600m")
    assert resized["metadata"]["generation"] == 2
    await kube.until(
        "p", lambda b: b["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] == "600m"
    )
    await uses_more(kube, "p", 0.35)
    assert min([await cores(kube, "p") for _ in range(3)]) < 0.75


async def test_a_pod_without_a_cpu_limit_uses_idle_cpu(kube):
    needs_groups(kube)
    await kube.create(pod("p", python(BURN, cpu="100m"), affinity=pinned_pod("small-1")))
    await kube.until_phase("p", "Running")
    await uses_more(kube, "p", 0.2)
    change = {
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "700m"}}}]}
    }
    kind = "application/strategic-merge-patch+json"
    await kube.v1.patch_namespaced_pod_resize("p", "default", change, _content_type=kind)
    found = await kube.until("p", lambda b: granted(b)["requests"]["cpu"] == "700m")
    assert "cpu" not in granted(found).get("limits", {})
    await uses_more(kube, "p", 0.2)


async def test_resizes_do_not_interrupt_a_container(kube):
    await kube.create(pod("p", python(GAPS, cpu="200m", limit="200m")))
    await kube.until_phase("p", "Running")
    async with asyncio.timeout(60):
        while not await kube.logs("p"):
            await asyncio.sleep(0.02)
    for limit in RESIZES * ("600m", "200m"):
        await resize(kube, "p", limit)
        await kube.until(
            "p",
            lambda b: b["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] == limit,  # noqa: B023
        )
    gaps = [float(gap) for gap in (await kube.logs("p")).split()]
    status = (await kube.pod("p"))["status"]["containerStatuses"][0]
    assert gaps and status["restartCount"] == 0
    assert sum(gap > 1.0 for gap in gaps) < RESIZES, (
        "a machine may stand still now and then, by itself"
    )


async def test_a_resize_that_does_not_fit_is_deferred(kube):
    await kube.create(
        pod("a", python(FOREVER, cpu="500m", limit="500m"), affinity=pinned_pod("small-1"))
    )
    await kube.create(
        pod(
            "b",
            python(FOREVER, cpu="500m"),
            affinity=pinned_pod("small-1"),
            terminationGracePeriodSeconds=1,
        )
    )
    for name in ("a", "b"):
        await kube.until_phase(name, "Running")
    await resize(kube, "a", "800m")
    waiting = await kube.until("a", lambda b: "PodResizePending" in conditions_of(b))
    assert [
        c["reason"] for c in waiting["status"]["conditions"] if c["type"] == "PodResizePending"
    ] == ["Deferred"]
    await kube.v1.delete_namespaced_pod("b", "default")
    await kube.until(
        "a", lambda b: b["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] == "800m"
    )


async def test_a_resize_changes_cpu_and_memory_and_nothing_else(kube):
    await kube.create(pod("p", python(FOREVER, cpu="100m")))
    await kube.until_phase("p", "Running")
    for resources in ({"requests": {"disk": "1"}}, {"limits": {"cpu": "50m"}}):
        change = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
        kind = "application/strategic-merge-patch+json"
        call = kube.v1.patch_namespaced_pod_resize("p", "default", change, _content_type=kind)
        assert await kube.refusal(call) == (422, "Invalid")


async def test_a_pod_above_its_memory_limit_is_oom_killed(kube):
    needs_groups(kube)
    greedy = python("x = bytearray(200 * 2**20); x[::4096] = b'x' * len(x[::4096])")
    greedy["resources"] = {"limits": {"memory": "48Mi"}}
    await kube.create(pod("p", greedy))
    assert terminated(await kube.until_phase("p", "Failed"))["reason"] == "OOMKilled"


async def test_a_pod_whose_child_process_was_oom_killed_is_oom_killed(kube):
    needs_groups(kube)
    child = "x = bytearray(200 * 2**20); x[::4096] = b'x' * len(x[::4096])"
    parent = python(
        "import subprocess, sys; sys.exit(128 - subprocess.run([sys.executable, '-c',"
        f" {child!r}]).returncode)"
    )
    parent["resources"] = {"limits": {"memory": "48Mi"}}
    await kube.create(pod("p", parent))
    end = terminated(await kube.until_phase("p", "Failed"))
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)


async def used_on(session):
    """Return the CPU usage of each node in nanocores."""
    nodes = await (await session.get("/apis/metrics.k8s.io/v1beta1/nodes")).json()
    return {n["metadata"]["name"]: int(n["usage"]["cpu"].removesuffix("n")) for n in nodes["items"]}


async def test_usage_is_measured_for_nodes_and_pods(kube):
    await kube.create(pod("p", python(BURN, limit="300m"), affinity=pinned_pod("small-1")))
    await kube.until_phase("p", "Running")
    async with asyncio.timeout(60), aiohttp.ClientSession(kube.cluster.url) as session:
        while (use := await used_on(session)).get("small-1", 0) <= 5e7:
            await asyncio.sleep(0.1)
        pods = await (
            await session.get("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods")
        ).json()
        counted = await (await session.get("/debug/cpu-seconds")).json()
    assert use["big"] < 5e7 and pods["items"][0]["containers"][0]["name"] == "main"
    assert (
        counted["nodes"]["small-1"]["seconds"] > 0
        and counted["nodes"]["small-1"]["allocatable"] == 1
    )


async def test_the_usage_of_ended_pods_stays_counted_on_their_node(kube):
    await kube.create(
        pod(
            "p",
            python("import time\nwhile time.process_time() < 0.3: pass"),
            affinity=pinned_pod("small-1"),
        )
    )
    await kube.until_phase("p", "Succeeded")
    least = 0.3 if kube.cluster.context.cgroups.enforced else 0.0
    await until(lambda: kube.cluster.usage.cpu_seconds()["nodes"]["small-1"] > least)


async def test_a_pod_killed_from_outside_fails(kube):
    await kube.create(pod("p", python(FOREVER)))
    uid = (await kube.until_phase("p", "Running"))["metadata"]["uid"]
    os.kill(processes.processes_of_cluster(uid)[0], signal.SIGKILL)
    assert terminated(await kube.until_phase("p", "Failed"))["exitCode"] == 137


async def test_a_pod_without_processes_has_no_usage(cluster, kube):
    body = await kube.create(pod("p", python("pass"), schedulerName="nobody", nodeName="big"))
    cluster.kubelet.workers["early"] = PodWorker(
        cluster.context, body | {"metadata": {**body["metadata"], "uid": "early"}}
    )
    cluster.usage.measure_usage()
    assert cluster.usage.cpu_seconds()["nodes"].keys() == {"big", "small-1", "small-2"}
    del cluster.kubelet.workers["early"]


async def test_a_cluster_that_stops_first_marks_its_nodes_not_ready(tmp_path):
    async with local_cluster(NODES, tmp_path, settings=QUICK) as cluster:
        assert {conditions(node)["Ready"] for node in cluster.store.bodies(NODE)} == {"True"}
    assert {conditions(node)["Ready"] for node in cluster.store.bodies(NODE)} == {"False"}
    cluster.write_node_status()
    assert {conditions(node)["Ready"] for node in cluster.store.bodies(NODE)} == {"False"}, (
        "no heartbeat revives it"
    )


MANY_NODES, MANY_PODS = 200, 1000


async def test_a_thousand_pods_are_scheduled_on_simulated_nodes_and_not_run(cluster, kube):
    store = cluster.store
    for number in range(MANY_NODES):
        body = node(f"sim-{number}")
        store.create(
            NODE,
            {**body, **new_system_object(store, NODE, f"sim-{number}"), "status": body["status"]},
        )
    start = time.monotonic()
    for number in range(MANY_PODS):
        wish = pod("", container(cpu="100m"), affinity=pinned_pod(f"sim-{number % MANY_NODES}"))
        store.create(
            POD, new_pod(new_system_object(store, POD, f"p{number}", "default", spec=wish["spec"]))
        )
    while not all(node_of(body) for body in store.bodies(POD)):
        await asyncio.sleep(0.05)
        assert time.monotonic() - start < 120
    async with await kube.v1.list_namespaced_pod_without_preload_content("default") as listed:
        assert len((await listed.json())["items"]) == MANY_PODS
    assert not cluster.kubelet.workers and all(
        b["status"]["phase"] == "Pending" for b in store.bodies(POD)
    )
