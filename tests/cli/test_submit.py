"""Tests of `weir submit`: checks of the file, the request, the answer, and following the job."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.allocator.admission.validation import LARGEST_REQUEST
from services.allocator.service import Settings, start
from services.cli import program_file, submit
from services.console.trouble import Trouble
from services.trainer.program import REQUIRED
from services.trainer.program_archive import read_archive
from shared.auth.permissions import program_stream
from shared.bus import bus as wire
from shared.bus import programs, subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import (
    LARGEST_PROGRAM,
    JobAccepted,
    JobFinished,
    JobRejected,
    JobRequested,
    ProgressReported,
)
from tests.cli.conftest import Prompt, closed, parse_words
from tests.conftest import connected

PROGRAM = "".join(f"def {name}(*_): ...\n" for name in REQUIRED)
GOOD = (
    "job: digits\nprogram: train.py\nepochs: 2\nbatch: 32\nps: 1\nworkers: {start: 1, min: 1, max:"
    " 3}\n"
)
NOWHERE = "nats://127.0.0.1:1"
WAYS = pytest.mark.parametrize(
    "words", [[], ["--dry-run"], ["--print"]], ids=["asked", "rehearsed", "printed"]
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write a job file and its program; return the job file."""
    (tmp_path / "train.py").write_text(PROGRAM)
    return written(tmp_path, GOOD)


def written(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


@pytest.fixture
async def allocator(bus: Bus, nats_url: str) -> AsyncIterator[None]:
    """Start the real allocator."""
    service = await wire.connect(nats_url, "allocator")
    await start(service, Settings())
    yield
    await closed(service)


async def asked(bus: Bus, key: str = "default.digits") -> JobRequested:
    heard = await bus.last_message(JobRequested, key)
    assert heard is not None and isinstance(heard.message, JobRequested)
    return heard.message


@pytest.mark.usefixtures("allocator")
async def test_a_valid_request_is_accepted_and_its_program_stored(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    said = await prompt("submit", job, "--nats", nats_url)

    assert said.code == 0 and "job default/digits is accepted (uid 1)\n" in said.out
    program = (await asked(bus)).program
    assert program.name == "train.py"
    assert (await (await bus.program_store()).get(program.digest)).data == PROGRAM.encode()


@pytest.mark.usefixtures("allocator")
@WAYS
async def test_submitting_runs_no_program_code(
    nats_url: str, prompt: Prompt, job: Path, words: list[str]
) -> None:
    ran = job.parent / "ran"
    (job.parent / "train.py").write_text(f"open({str(ran)!r}, 'w')\n{PROGRAM}")

    assert (await prompt("submit", job, "--nats", nats_url, *words)).code == 0
    assert not ran.exists()


@WAYS
async def test_every_error_in_a_file_is_listed_before_connecting(
    prompt: Prompt, tmp_path: Path, words: list[str]
) -> None:
    wrong = (
        "job: My Job\nprogram: trian.py\nepochs: 0\nbatch: many\nps: {start: 3, min: 1, max:"
        " 2}\nworkrs: 2\n"
    )
    nested = "resources: {worker: {cpus: 1}}\npolicy: best\n"
    file = written(tmp_path, wrong + nested)

    said = await prompt("submit", file, "--nats", NOWHERE, *words)

    first, *reasons, last = said.err.splitlines()
    assert (said.code, said.out, first) == (2, "", f"weir submit: {file} is not a valid job:")
    assert {reason.partition(": ")[0] for reason in reasons} == {
        f"  - {field}"
        for field in (
            "job",
            "program",
            "epochs",
            "batch",
            "ps",
            "workrs",
            "workers",
            "resources.worker.cpus",
            "policy",
        )
    }
    assert "  - workrs: no such field; did you mean 'workers'?" in reasons
    assert "  - resources.worker.cpus: no such field; did you mean 'cpu'?" in reasons
    assert last == "Nothing was sent; deploy/jobs/digits.yaml explains every field."


async def test_the_namespace_may_be_given_beside_the_file(prompt: Prompt, job: Path) -> None:
    said = await prompt("submit", job, "-n", "team-a", "--print")

    assert said.code == 0 and json.loads(said.out)["namespace"] == "team-a"


async def test_two_namespaces_for_one_job_are_refused(prompt: Prompt, job: Path) -> None:
    file = written(job.parent, f"{GOOD}namespace: team-b\n")

    same = await prompt("submit", file, "-n", "team-b", "--print")
    other = await prompt("submit", file, "-n", "team-a", "--print")

    assert same.code == 0 and json.loads(same.out)["namespace"] == "team-b"
    assert other.code == 2 and other.err.endswith(
        "names the namespace 'team-b', and -n 'team-a': give only one\n"
    )


async def test_an_invalid_number_is_reported_once_as_typed(prompt: Prompt, tmp_path: Path) -> None:
    wrong = "job: mine\nepochs: 1\nbatch: 0\nps: {start: 0, min: 0, max: 1}\nworkers: -1\n"

    said = await prompt("submit", written(tmp_path, wrong), "--nats", NOWHERE)

    told = [line.split(": ")[0].removeprefix("  - ") for line in said.err.splitlines()[1:-1]]
    assert told == ["program", "batch", "ps.start", "ps.min", "workers"]


async def test_a_duplicate_field_is_an_error(prompt: Prompt, job: Path) -> None:
    twice = GOOD.replace("max: 3", "max: 3, max: 4") + "epochs: 3\n"

    said = await prompt("submit", written(job.parent, twice), "--nats", NOWHERE)

    assert said.code == 2 and "  - workers.max: again on line 6\n  - epochs: again" in said.err


@pytest.mark.parametrize("program", ["7", "''", "['train.py']"])
async def test_a_program_must_be_a_path(prompt: Prompt, job: Path, program: str) -> None:
    file = written(job.parent, GOOD.replace("train.py", program))

    said = await prompt("submit", file, "--nats", NOWHERE)

    assert (
        said.code == 2
        and f"  - program: is a path, relative to this file, not {program}\n" in said.err
    )


async def test_an_invalid_request_is_not_published(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    said = await prompt("submit", written(job.parent, f"{GOOD}epocs: 3\n"), "--nats", nats_url)

    assert said.code == 2 and await bus.last_message(JobRequested, "default.digits") is None
    assert (await (await bus.program_store()).status()).size == 0


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize("policy", ["mine:fair", "nobody:knows"])
async def test_custom_policies_are_checked_by_the_cluster(
    nats_url: str, prompt: Prompt, job: Path, policy: str
) -> None:
    cluster_knows = (
        f"policy: '{policy}'\nvolumes: [{{name: data, mount_path: /data, host_path: /srv}}]\n"
    )

    said = await prompt("submit", written(job.parent, GOOD + cluster_knows), "--nats", nats_url)

    first, *reasons = said.err.splitlines()
    assert (said.code, first) == (1, "weir submit: job digits is refused:")
    assert [reason.partition(": ")[0] for reason in reasons] == [
        "  - policy",
        "  - volumes[0].host_path",
    ]


# ---------------------------------------------------------------- printed next steps


@pytest.mark.usefixtures("allocator")
async def test_submit_prints_how_to_watch_the_job(nats_url: str, prompt: Prompt, job: Path) -> None:
    said = await prompt("submit", job, "--nats", nats_url)

    assert said.out.splitlines()[-1] == "job default/digits is accepted (uid 1)"
    assert (
        said.err
        == f"watch it: `weir events --job digits --follow --nats {nats_url}`, or `weir top --nats"
        f" {nats_url}`; the program was read, not tried: `weir doctor"
        f" {job.parent / 'train.py'}`\n"
    )
    advised = re.findall("`weir ([a-z]+) ([^`]+)`", said.err)
    assert [parse_words(name, *words.split()).params["nats"] for name, words in advised[:2]] == [
        nats_url,
        nats_url,
    ]


@pytest.mark.usefixtures("allocator")
async def test_submit_prints_hints_for_a_stored_program_and_a_namespace(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.create(namespaces=["red"])
    digest = await program_file.store_program(bus, PROGRAM.encode(), "red")
    monkeypatch.setenv("WEIR_NATS_URL", nats_url)

    said = await prompt("submit", written(tmp_path, f"namespace: red\n{by_digest(digest)}"))

    assert said.code == 0, said.err
    assert said.err == "watch it: `weir events --job digits --follow -n red`, or `weir top`\n"


@pytest.mark.usefixtures("allocator")
async def test_a_second_request_of_the_same_file_is_refused_while_the_first_job_runs(
    nats_url: str, prompt: Prompt, job: Path
) -> None:
    codes = [(await prompt("submit", job, "--nats", nats_url)).code for _ in range(2)]

    assert codes == [0, 1]


async def test_a_stored_program_is_not_uploaded_again(bus: Bus) -> None:
    name = await program_file.store_program(bus, b"x")
    first = await (await bus.program_store()).get_info(name)

    assert await program_file.store_program(bus, b"x") == name
    again = await (await bus.program_store()).get_info(name)
    assert (again.nuid, again.size, again.digest) == (first.nuid, 1, first.digest)
    assert (await (await bus.program_store()).get(name)).data == b"x"
    assert (await bus.js.stream_info(program_stream("default"))).state.messages == 2, (
        "one part, one description"
    )


@pytest.mark.usefixtures("allocator")
async def test_a_program_with_a_replaced_description_is_uploaded_again(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    name = await program_file.store_program(bus, PROGRAM.encode())
    await (await bus.program_store()).put(name, b"import os")

    said = await prompt("submit", job, "--nats", nats_url)

    assert said.code == 0, said.err
    assert (await (await bus.program_store()).get(name)).data == PROGRAM.encode()


@pytest.mark.usefixtures("allocator")
async def test_a_request_with_a_wrong_program_description_is_refused(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    name = program_file.digest(PROGRAM.encode())
    await (await bus.program_store()).put(name, b"import os")

    said = await prompt("submit", written(tmp_path, by_digest(name)), "--nats", nats_url)

    told = (
        f"  - program.digest: the store has other content under {name}; submit the job again"
        " with `weir submit`\n"
    )
    assert said.code == 1 and told in said.err


def by_digest(name: str) -> str:
    return GOOD.replace("train.py", f"{{name: train.py, digest: {name}}}")


# ---------------------------------------------------------------- a namespace that is not provisioned


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["asked", "rehearsed"])
@pytest.mark.parametrize("with_program", [True, False])
async def test_an_unprovisioned_namespace_has_a_remedy_within_seconds(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path, words: list[str], with_program: bool
) -> None:
    text = GOOD if with_program else by_digest(program_file.digest(b""))
    file = written(job.parent, f"namespace: green\n{text}")

    async with asyncio.timeout(30):
        said = await prompt("submit", file, "--nats", nats_url, *words)

    first, last = said.err.splitlines()
    assert said.code == 1
    assert first.startswith("weir submit: namespace green is not provisioned on this bus")
    assert "`weir streams create --namespace green`" in last
    assert await bus.last_message(JobRequested, "green.digits") is None


@pytest.mark.usefixtures("allocator")
async def test_a_manual_request_for_an_unprovisioned_namespace_is_rejected(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    printed = await prompt("submit", written(job.parent, f"namespace: green\n{GOOD}"), "--print")
    await bus.client.request("weir.job.requested.green.digits", printed.out.encode(), timeout=60)

    async with asyncio.timeout(60):
        while (rejected := await bus.last_message(JobRejected, "green.digits")) is None:
            await asyncio.sleep(0.01)

    assert isinstance(rejected.message, JobRejected)
    (reason,) = rejected.message.reasons
    assert reason.startswith(
        "namespace: 'green' is not provisioned on the bus; run `weir streams create"
    )
    assert (await prompt("submit", written(job.parent, GOOD), "--nats", nats_url)).code == 0


async def test_a_full_program_bucket_has_a_remedy(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    await bus.js.update_stream(
        (await bus.js.stream_info(program_stream("default"))).config, max_bytes=1
    )

    said = await prompt("submit", job, "--nats", nats_url)

    first, last = said.err.splitlines()
    assert said.code == 1 and first.startswith(
        "weir submit: the programs of namespace default fill their bucket"
    )
    assert "`weir streams create --namespace default --programs-mib N`" in last


async def test_submit_without_an_allocator_is_an_error_and_the_request_stays(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    said = await prompt("submit", job, "--nats", nats_url, "--timeout", "0.2")

    assert said.code == 1 and "is the allocator running?" in said.err
    assert (await asked(bus)).epochs == 2


async def test_a_too_large_program_is_refused_before_sending(prompt: Prompt, job: Path) -> None:
    with (job.parent / "train.py").open("wb") as file:
        file.truncate(LARGEST_PROGRAM + 1)

    said = await prompt("submit", job, "--nats", NOWHERE)

    assert said.code == 1 and "16.0 MiB; at most 16 MiB are allowed" in said.err


async def test_a_request_too_large_for_the_allocator_or_the_server_is_refused(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    said = await prompt(
        "submit", written(job.parent, f"{GOOD}image: {'x' * LARGEST_REQUEST}\n"), "--nats", nats_url
    )
    assert said.code == 2 and f"more than {LARGEST_REQUEST:,}" in said.err

    most = bus.client.max_payload
    with pytest.raises(Trouble, match=f"takes at most {most:,}"):
        await submit.publish_request(
            bus, {"job": "digits", "image": "x" * most, "request_id": "r1"}, "job.yaml"
        )


@pytest.mark.usefixtures("allocator")
async def test_a_folder_is_stored_whole_and_requested_with_its_parameters(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    folder = job.parent / "train"
    folder.mkdir()
    (folder / "main.py").write_text(f"{PROGRAM}def optimizer(rate=1, momentum=0): ...\n")
    (folder / "words.txt").write_text("a b")
    file = written(job.parent, GOOD.replace("train.py", "train") + "params: {rate: 1e-3}\n")

    said = await prompt("submit", file, "--param", "momentum=0.9", "--nats", nats_url)

    assert said.code == 0, said.err
    request = await asked(bus)
    assert (request.program.name, request.program.entry) == ("train", "main.py")
    assert request.params == {"rate": 0.001, "momentum": 0.9}
    stored = await programs.read_program(bus, "default", request.program.digest)
    assert sorted(read_archive(stored)) == ["main.py", "words.txt"]


@WAYS
async def test_an_unknown_parameter_is_refused_before_sending(
    prompt: Prompt, job: Path, words: list[str]
) -> None:
    said = await prompt("submit", job, "--param", "rate=1", *words, "--nats", NOWHERE)

    assert said.code == 2 and "params.rate: no function of train.py takes it" in said.err


async def test_a_value_that_cannot_be_sent_is_refused_with_the_others(
    prompt: Prompt, job: Path
) -> None:
    file = written(job.parent, f"{GOOD}grace: 3\nparams: {{rate: .inf}}\n")

    said = await prompt("submit", file, "--nats", NOWHERE)

    assert said.code == 2 and "params.rate: inf cannot be sent as a number" in said.err
    assert "grace: no such field" in said.err and "no function of train.py takes it" in said.err


@pytest.mark.usefixtures("allocator")
async def test_a_printed_request_can_be_published_by_hand(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    printed = await prompt("submit", job, "--print", "--nats", "nats://127.0.0.1:1")

    assert printed.code == 0 and await bus.last_message(JobRequested, "default.digits") is None
    assert (
        await program_file.store_program(bus, PROGRAM.encode())
        == json.loads(printed.out)["program"]["digest"]
    )
    await bus.client.request("weir.job.requested.default.digits", printed.out.encode(), timeout=60)
    async with asyncio.timeout(60):
        while (accepted := await bus.last_message(JobAccepted, "default.digits")) is None:
            await asyncio.sleep(0.01)
    assert isinstance(accepted.message, JobAccepted) and accepted.message.request.workers.max == 3


@WAYS
@pytest.mark.parametrize(
    ("text", "told"),
    [("def model(:\n", "train.py:1: invalid syntax"), ("", "train.py lacks model(), optimizer()")],
    ids=["syntax", "lacking"],
)
async def test_an_invalid_program_is_refused_before_sending(
    prompt: Prompt, job: Path, text: str, told: str, words: list[str]
) -> None:
    (job.parent / "train.py").write_text(text)

    said = await prompt("submit", job, "--nats", NOWHERE, *words)

    assert said.code == 2 and told in said.err


async def test_a_missing_program_is_wrong_use(prompt: Prompt, tmp_path: Path) -> None:
    said = await prompt("submit", written(tmp_path, GOOD), "--nats", NOWHERE)

    assert said.code == 2 and "train.py: No such file" in said.err


# ---------------------------------------------------------------- following a job


async def answering(bus: Bus, outcome: str) -> None:
    """Accept each request, report progress once, and finish the job.

    A report of another uid precedes the job's own.
    """

    async def on_request(heard: StoredMessage) -> None:
        about = {"job": "digits", "uid": heard.sequence}
        assert isinstance(heard.message, JobRequested)
        await bus.publish(JobAccepted(**about, request=heard.message, accepted_s=1.0))
        earlier = {**about, "uid": 99}
        numbers = {
            "step": 1,
            "epoch": 0,
            "samples": 5,
            "total_samples": 10,
            "samples_per_second": 1.0,
        }
        await bus.publish(ProgressReported(**earlier, **numbers, loss=0.9999))
        await bus.publish(ProgressReported(**about, **numbers, loss=0.1111))
        await bus.publish(
            JobFinished(**about, outcome=outcome, cause="Traceback:\n  here\nValueError: no")
        )

    await bus.follow([JobRequested], on_request, {})


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
async def test_following_ends_with_the_job_and_only_success_is_success(
    nats_url: str, prompt: Prompt, job: Path, outcome: str, code: int
) -> None:
    world = await connected(nats_url, "world")
    await answering(world, outcome)

    said = await prompt("submit", job, "--nats", nats_url, "--follow")
    await closed(world)

    lines = said.out.splitlines()
    assert said.code == code
    assert lines[0].endswith("is accepted (uid 1)") and outcome in lines[-1]
    assert "0.1111" in said.out and "0.9999" not in said.out, (
        "an earlier job of the same name is not shown"
    )
    assert ("  here" in said.err) == (outcome == "failed"), (
        "the whole traceback where there is one to act on"
    )


async def test_an_unreadable_request_reaches_the_allocator(bus: Bus) -> None:
    uid = await submit.publish_request(bus, {"job": "no name!", "request_id": "r1"}, "job.yaml")

    raw = await bus.js.get_msg(subjects.ORDERS, uid)
    assert raw.subject == "weir.job.requested.default.-"
    assert raw.data == b'{"job":"no name!","request_id":"r1"}'
    assert (raw.headers or {})["Nats-Msg-Id"] == "default.-.job.requested.r1"
