"""Tests of `weir up`: checks before the start, what it prints, Ctrl-C, and the next start.

The tests of `services/local` and the tests in `tests/flow` show that the system works.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import aiohttp
import pytest

from services.__main__ import weir
from services.allocator.job_views import JobView
from services.cli.up import (
    GOING,
    KEPT,
    NOTHING,
    describe_cluster_change,
    describe_continued,
    describe_left_behind,
    read_cluster_file,
    read_left_behind,
    service_settings,
)
from shared.bus.bus import Bus
from shared.messages import CheckpointSaved
from tests.architecture.source import ROOT
from tests.cli.conftest import Prompt
from tests.cli.test_jobs import shown
from tests.cli.test_too_large import job
from tests.shared.sample_messages import JOB

BAD = """
nodes: [{cpu: 0, memory_gib: many}, {cpus: 2}]
"""


def token_in(kubeconfig: str) -> str:
    token: str = json.loads(Path(kubeconfig).read_text())["users"][0]["user"]["token"]
    return token


async def test_a_bad_cluster_file_is_refused_with_every_reason(
    prompt: Prompt, tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(BAD)
    said = await prompt("up", "--cluster", tmp_path / "cluster.yaml", "--data", tmp_path / "data")

    assert not (tmp_path / "data").exists()
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines() == [
        f"weir up: {tmp_path / 'cluster.yaml'} describes no cluster:",
        "  nodes[0].cpu: Expected `float` > 0.0, got 0",
        "  nodes[0].memory_gib: Expected `float`, got 'many'",
        "  nodes[1].cpus: no such field; did you mean 'cpu'?",
    ]


@pytest.mark.parametrize(
    ("body", "told"),
    [(None, "cannot read"), (b"\xff", "is not text in UTF-8"), (b"nodes: [", "not valid YAML")],
)
async def test_an_invalid_cluster_file_is_wrong_use(
    prompt: Prompt, tmp_path: Path, body: bytes | None, told: str
) -> None:
    file = tmp_path / "cluster.yaml"
    if body is not None:
        file.write_bytes(body)

    said = await prompt("up", "--cluster", file, "--data", tmp_path / "data")

    assert said.code == 2 and told in said.err and str(file) in said.err


async def test_files_of_secrets_are_checked_before_anything_starts(
    prompt: Prompt, tmp_path: Path
) -> None:
    file = tmp_path / "bucket.env"
    file.write_text("KEY\n")
    said = await prompt(
        *("up", "--data", tmp_path / "data", "--secret", f"bucket={file}"),
        *("--secret", f"bucket={file}", "--config-map", f"sizes={tmp_path / 'none'}"),
    )

    assert not (tmp_path / "data").exists()
    assert (said.code, said.out) == (2, "")
    lines = said.err.removeprefix("weir up: ").splitlines()
    assert lines == [
        "Secret default/bucket is given twice",
        f"{file}, line 1: is not NAME=value",
        f"{file}, line 1: is not NAME=value",
        f"cannot read {tmp_path / 'none'}: No such file or directory",
    ]


async def test_an_option_that_names_no_secret_is_wrong_use(prompt: Prompt, tmp_path: Path) -> None:
    said = await prompt("up", "--data", tmp_path / "data", "--secret", "bucket")

    assert said.code == 2 and "'bucket' is not [NAMESPACE/]NAME=PATH" in said.err


def test_a_second_weir_up_is_refused_with_the_right_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as bus,
        socket.create_server(("127.0.0.1", 0)) as page,
    ):
        nats, taken = (str(each.getsockname()[1]) for each in (bus, page))
        up = [
            "up",
            "--data",
            str(tmp_path / "data"),
            "--kube-port",
            "0",
            "--page-port",
            taken,
            "--nats-port",
        ]
        codes = [weir([*up, nats]), weir([*up, "0"])]

    assert codes == [1, 1] and not (tmp_path / "data").exists()
    assert capsys.readouterr().err.splitlines() == [
        (
            f"weir up: port {nats} is in use: is `weir up` running already? "
            "If not, choose another one with --nats-port"
        ),
        f"weir up: port {taken} is taken; choose another with --page-port",
    ]


async def begun(folder: Path, *words: str) -> tuple[asyncio.subprocess.Process, list[str]]:
    """Start `weir up`; return the process and the lines that it prints until it is up."""
    ports = [word for name in ("nats", "kube", "page") for word in (f"--{name}-port", "0")]
    process = await weir_in(folder, "up", *ports, *words)
    assert process.stdout is not None
    said = [""]
    while "Logs: .weir" not in said[-1]:
        said.append((await process.stdout.readline()).decode())
        assert (folder / ".weir" / "connection.json").exists() or process.returncode is None
    return process, said[1:]


async def weir_in(folder: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services", *words),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def ended(process: asyncio.subprocess.Process) -> list[str]:
    """Send SIGINT, as Ctrl-C does; return the lines that are printed from then on."""
    process.send_signal(signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == 0
    return [line for line in said.decode().splitlines() if line]


async def test_ctrl_c_lists_open_jobs_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(120):
        process, _ = await begun(tmp_path)
        said = await ended(process)

    assert said == [GOING, NOTHING.format(folder=".weir")]
    assert not (tmp_path / ".weir" / "connection.json").exists()


async def test_the_page_answers_at_the_printed_address(tmp_path: Path) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as http:
        process, said = await begun(tmp_path)
        address = next(line.split()[-1] for line in said if "look in a browser" in line)
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with http.get(address) as answer:
                    assert answer.status == 200 and "<title>" in await answer.text()
                    break
            await asyncio.sleep(0.1)
        await ended(process)


async def test_the_next_start_lists_the_jobs_it_continues(tmp_path: Path) -> None:
    """A job that waits for a larger node is also listed."""
    file = job(tmp_path, 100)
    async with asyncio.timeout(180):
        process, _ = await begun(tmp_path)
        submitted = await weir_in(tmp_path, "submit", file.name)
        assert b"is accepted" in (await submitted.communicate())[0]
        *_, left = await ended(process)
        (tmp_path / ".weir" / KEPT).write_text("nodes: [{cpu: 1, memory_gib: 6}]")
        again, said = await begun(tmp_path)
        await ended(again)

    assert said.pop(0).endswith("it was 1 node of 1 cpu, 6 GiB.\n")
    assert left == "  mine  has no checkpoint yet: it starts from the beginning"
    assert (
        said[0] == "weir continues the jobs of the previous `weir up`: mine from its beginning.\n"
    )
    assert said[1] == "\n" and said[2].startswith("weir is up: ")


async def test_jobs_run_only_in_default_and_the_namespaces_of_quotas(
    tmp_path: Path,
) -> None:
    file = job(tmp_path, 100)
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{cpu: 0.5}]\nquotas: {team-a: {cpu: 0.4}, team-b: {}}"
    )
    async with asyncio.timeout(180):
        process, _ = await begun(tmp_path, "--cluster", "cluster.yaml")
        where = json.loads((tmp_path / ".weir" / "connection.json").read_text())
        headers = {"Authorization": f"Bearer {token_in(where['kubeconfig'])}"}
        async with aiohttp.ClientSession(where["kube_url"]) as session:
            anybody = (await session.post("/api/v1/namespaces/default/pods", json={})).status
            spaces = [f"/api/v1/namespaces/team-{team}" for team in "abc"]
            there = [(await session.get(space, headers=headers)).status for space in spaces]
        said = [await asked(file, f"namespace: team-{team}") for team in "bc"]
        await ended(process)

    assert there == [200, 200, 404] and anybody == 401
    assert stat.S_IMODE(os.stat(where["kubeconfig"]).st_mode) == 0o600
    assert (
        where["limits"].items()
        >= service_settings(read_cluster_file(tmp_path / "cluster.yaml")).items()
    )
    assert b"job team-b/mine is accepted" in said[0]
    assert b"namespace team-c is not provisioned on this bus" in said[1] and b"`quotas:`" in said[1]


async def asked(file: Path, more: str) -> bytes:
    own = file.with_name("own.yaml")
    own.write_text(f"{file.read_text()}{more}\n")
    said, _ = await (await weir_in(file.parent, "submit", own.name)).communicate()
    return said


HERE, FOLDER = Path("/home/somebody"), Path(".weir")


def view(job: str, **fields: object) -> JobView:
    about = {"job": job, "namespace": "default", "uid": 7, "phase": "Running", **fields}
    return JobView(**about)  # type: ignore[arg-type]


def saved(path: str) -> CheckpointSaved:
    return CheckpointSaved(**JOB, step=1_234, samples=320, path=path, seconds=0.5, final=True)


def test_a_stop_without_open_jobs_says_so() -> None:
    assert describe_left_behind({}, FOLDER, HERE) == [
        "weir is down; no job was open. The log stays in .weir."
    ]


def test_a_stop_lists_each_job_with_its_checkpoint() -> None:
    lines = describe_left_behind(
        {
            "default.digits": (
                view("digits", total_samples=640),
                saved(f"{HERE}/.weir/checkpoints/x/ckpt-1234"),
            ),
            "team-a.clicks": (view("clicks", namespace="team-a", phase="Pending"), None),
            "default.elsewhere": (view("elsewhere"), saved("s3://bucket/x/ckpt-1234")),
        },
        FOLDER,
        HERE,
    )

    assert lines == [
        "weir is down. 3 jobs were not over; the next `weir up` with .weir continues:",
        "  digits         saved at step 1,234, 50 % done: .weir/checkpoints/x/ckpt-1234",
        "  team-a/clicks  has no checkpoint yet: it starts from the beginning",
        "  elsewhere      saved at step 1,234: s3://bucket/x/ckpt-1234",
    ]


def test_the_next_start_names_some_of_many_jobs() -> None:
    assert describe_continued({}) == ""
    under_way = {
        "default.digits": (view("digits", total_samples=640), saved("/x/ckpt-1234")),
        "default.early": (view("early"), saved("/x/ckpt-1234")),
        "team-a.clicks": (view("clicks", namespace="team-a"), None),
    }
    assert (
        describe_continued(under_way) == "weir continues the jobs of the previous `weir up`: "
        "digits from step 1,234 (50 %), early from step 1,234, team-a/clicks from its beginning."
    )
    many = describe_continued(
        {f"default.job-{number}": (view(f"job-{number}"), None) for number in range(10)}
    )
    assert "10 jobs: job-0 from its beginning, job-1" in many and many.endswith(
        "job-7 from its beginning and 2 more."
    )


async def test_open_jobs_are_read_from_the_bus(bus: Bus) -> None:
    await shown(bus, "digits", phase="Running")
    await shown(bus, "over", phase="Succeeded")
    await bus.publish(saved("/somewhere/ckpt-1234"))

    found = await read_left_behind(bus)

    assert list(found) == ["default.digits"]
    there, checkpoint = found["default.digits"]
    assert (checkpoint is not None) == (there.uid == JOB["uid"]), (
        "of an earlier job of this name nothing counts"
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    return tmp_path / "given.yaml"


def said(cluster: Path, nodes: str) -> str:
    cluster.write_text(f"nodes: [{nodes}]")
    return describe_cluster_change(cluster.parent, cluster)


def test_the_first_and_the_same_cluster_print_nothing(cluster: Path) -> None:
    assert said(cluster, "{count: 4, cpu: 0.5, memory_gib: 4}") == ""
    assert said(cluster, "{count: 4, memory_gib: 4.0, cpu: 0.5}") == ""


def test_a_changed_cluster_is_printed_once_beside_the_earlier_one(cluster: Path) -> None:
    said(cluster, "{count: 3, cpu: 1, memory_gib: 6}")
    now = "{name: a, cpu: 0.5, memory_gib: 4}, {name: b, count: 2, cpu: 2, memory_gib: 4, gpu: 1}"

    assert (
        said(cluster, now)
        == "The cluster differs from that of the previous `weir up`: 1 node of 0.5 cpu, 4 GiB, 2"
        " nodes of 2 cpu, 4 GiB, 1 GPU; it was 3 nodes of 1 cpu, 6 GiB.\n"
    )
    assert said(cluster, now) == ""


def test_an_unreadable_stored_cluster_prints_nothing(cluster: Path) -> None:
    (cluster.parent / KEPT).write_bytes(b"\xff")
    assert said(cluster, "{cpu: 1}") == ""
