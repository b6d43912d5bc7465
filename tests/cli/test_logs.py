"""Tests of `weir logs`.

They cover logs from the Kubernetes API, kept logs of deleted pods, and the choice of the pod.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kubernetes import config

from services.cli.logs import Pod, choose_pod, kept_pods, whole_lines
from services.console.trouble import Trouble
from shared.bus.bus import Bus
from tests.allocator.builders import Story, accepted, node
from tests.cli.conftest import PRINTED, Api, Prompt
from tests.cli.test_jobs import shown
from tests.console.text.test_log_lines import CAUSE, CLOSURE

Keep = Callable[[str, str], None]


async def test_logs_without_a_task_shows_the_chief(kube: Api, prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "--kube", kube.url)

    assert (said.code, said.out) == (0, PRINTED)


async def test_logs_follow_sets_follow_in_the_api_request(kube: Api, prompt: Prompt) -> None:
    await prompt("logs", "digits", "--kube", kube.url, "--follow")

    assert kube.asked["follow"].lower() == "true"


async def test_logs_reads_only_pods_of_the_job(kube: Api, prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "ps-7", "--kube", kube.url)

    assert said.code == 1 and "there are digits-chief-0, digits-worker-1" in said.err
    assert kube.asked == {"labelSelector": "weir.dev/job=digits"}


async def test_an_error_of_kubernetes_is_printed_with_its_message(
    kube: Api, prompt: Prompt
) -> None:
    said = await prompt("logs", "digits", "worker-1", "--kube", kube.url)

    assert (said.code, said.err) == (
        1,
        "weir logs: Kubernetes refuses the request: is waiting to start\n",
    )


async def test_an_unreachable_kubernetes_is_an_error(prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "--kube", "http://127.0.0.1:1")

    assert said.code == 1 and said.err.startswith("weir logs: cannot reach Kubernetes")
    assert json.dumps(said.err).count("\\n") == 2 and "elsewhere, give --kube URL" in said.err


async def test_a_job_without_pods_is_reported_as_finished_or_unknown_with_the_known_jobs(
    kube: Api, bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    kube.items = []
    await shown(bus, "clicks", phase="Succeeded")
    where = ("--kube", kube.url, "--nats", nats_url)

    over, unknown = await prompt("logs", "clicks", *where), await prompt("logs", "digits", *where)

    assert over.code == 1 and over.err.startswith(
        "weir logs: job default/clicks is over (succeeded), its pods and logs"
    )
    assert unknown.err == "weir logs: there is no job default/digits; there are default/clicks\n"


async def test_the_tasks_in_the_help_of_logs_have_real_task_names(
    prompt: Prompt,
) -> None:
    said = await prompt("logs", "--help")

    named = re.findall(r"\b(?:chief|ps|worker)-\d+", said.out)
    first = Story().hear(node(), accepted()).decided()
    assert named and set(named) <= {f"{task.role}-{task.serial}" for task in first.tasks}


async def test_logs_without_a_kubernetes_names_the_option(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))

    said = await prompt("logs", "digits")

    assert (
        said.code == 1 and "elsewhere, give --kube URL (usually http://127.0.0.1:8001)" in said.err
    )


@pytest.fixture
def keep(kube: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Return a function that writes a pod's log where `weir up` keeps it.

    It also writes the connection file with the address of the Kubernetes API.
    """

    def kept(pod: str, text: str) -> None:
        file = tmp_path / ".weir" / "cluster" / "logs" / f"default_{pod}_uid" / "tensorflow.log"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        written = {"kube_url": kube.url, "pod_logs": str(file.parent.parent)}
        (tmp_path / ".weir" / "connection.json").write_text(json.dumps(written))

    monkeypatch.chdir(tmp_path)
    return kept


STARTED = {
    "event": "StartChild",
    "level": "info",
    "generation": 2,
    "timestamp": "2026-11-22T02:46:11.549478Z",
}


async def test_the_kept_log_of_a_deleted_pod_is_shown_readable_or_raw(
    prompt: Prompt, keep: Keep
) -> None:
    text = f"{json.dumps(STARTED)}\nthe last words"
    keep("digits-worker-7", text)

    read = await prompt("logs", "digits", "worker-7", "--all")
    raw = await prompt("logs", "digits", "worker-7", "--json")

    assert read.code == 0 and "the pod is gone; this is " in read.err
    first, last = read.out.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:11\.549 info    worker-7   StartChild +generation=2", first)
    assert last == "the last words" and raw.out == text
    there = await prompt("logs", "digits", "chief")
    assert (there.out, there.err) == (PRINTED, ""), "who is there is asked"


async def test_logs_shows_the_programs_lines_and_the_number_of_hidden_lines(
    prompt: Prompt, kube: Api, keep: Keep
) -> None:
    keep("digits-chief-7", f"{json.dumps(STARTED)}\nI0000 00:00:1 port.cc:1] on\nmine\n")
    kube.items = []

    said = await prompt("logs", "digits")

    assert (said.code, said.out) == (0, "mine\n"), "a job that is over has its logs still"
    assert said.err.endswith(
        "weir logs: left out 2 lines from Weir, TensorFlow's start and repetitions; --all shows them\n"
    )


def test_whole_lines_are_joined_from_chunks_of_any_size() -> None:
    for size in (1, 2, 3, 100):
        text = b"one\ntwo\r\n\nthree"
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert list(whole_lines(chunks)) == [b"one\n", b"two\r\n", b"\n", b"three"]


async def test_a_repeated_tensorflow_failure_is_shown_once_and_in_full_with_all(
    prompt: Prompt, kube: Api, keep: Keep
) -> None:
    keep("digits-chief-7", f"mine\n{CLOSURE}{CLOSURE}")
    kube.items = []

    said, every = await prompt("logs", "digits"), await prompt("logs", "digits", "--all")

    assert said.code == 0 and said.out.splitlines() == ["mine", *CAUSE.splitlines()]
    assert every.out.count("[[weir: the program failed]]") == 6


def printed(
    folder: Path, pod: str, at_s: float, namespace: str = "default", text: str = "hello\n"
) -> Path:
    file = folder / f"{namespace}_{pod}_0a11a717-d315" / "tensorflow.log"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    os.utime(file, (at_s, at_s))
    return file


def test_kept_pods_are_only_those_of_the_job(tmp_path: Path) -> None:
    file = printed(tmp_path, "digits-chief-0", 100.0)
    printed(tmp_path, "digits-two-chief-0", 200.0)
    printed(tmp_path, "digits-chief-0", 300.0, namespace="team-a")
    printed(tmp_path, "digits-helper-1", 300.0)
    (tmp_path / "something else").mkdir()
    (tmp_path / "default_digits-ps-1_uid").mkdir()

    assert kept_pods(str(tmp_path), "default", "digits") == [
        Pod("digits-chief-0", "chief", 100.0, file)
    ]


def test_without_kept_logs_no_pods_are_found(tmp_path: Path) -> None:
    assert (
        kept_pods("", "default", "digits")
        == kept_pods(str(tmp_path / "none"), "default", "digits")
        == []
    )


def test_a_living_pod_is_chosen_before_a_deleted_one() -> None:
    there = [Pod("digits-chief-3", "chief", 10.0), Pod("digits-worker-4", "worker", 10.0)]
    gone = [
        Pod("digits-chief-0", "chief", 99.0, Path("a")),
        Pod("digits-worker-2", "worker", 98.0, Path("b")),
    ]

    assert (
        choose_pod(there, None, gone) is there[0] and choose_pod(there, "worker-2", gone) is gone[1]
    )
    assert choose_pod([], None, gone) is gone[0]


PODS = [
    Pod("digits-chief-0", "chief", 1.0),
    Pod("digits-worker-1", "worker", 1.0),
    Pod("digits-worker-11", "worker", 2.0),
    Pod("digits-chief-12", "chief", 3.0),
]


def test_without_a_task_the_newest_chief_is_chosen() -> None:
    assert choose_pod(PODS, None).name == "digits-chief-12"


def test_a_task_matches_the_end_of_its_pods_name_only() -> None:
    assert (
        choose_pod(PODS, "worker-1").name
        == choose_pod(PODS, "digits-worker-1").name
        == "digits-worker-1"
    )


def test_a_role_chooses_its_newest_pod() -> None:
    assert choose_pod(PODS, "worker").name == "digits-worker-11"


def test_an_unknown_task_is_an_error_with_the_known_pods() -> None:
    with pytest.raises(
        Trouble,
        match="no pod of 'ps-0'; there are digits-chief-0, digits-chief-12, digits-worker-1",
    ):
        choose_pod(PODS, "ps-0")


def test_choosing_from_a_job_without_pods_is_an_error() -> None:
    with pytest.raises(Trouble, match="there are no pods of this job"):
        choose_pod([], None)
