"""Tests of `weir submit --dry-run`: it prints what would happen, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.allocator.policies.registry import POLICIES
from services.cli.connection import FILE
from shared.bus.bus import Bus
from shared.messages import JobRequested
from tests.allocator.builders import accepted, node, request
from tests.cli.conftest import Prompt
from tests.cli.test_submit import GOOD, PROGRAM, written
from tests.shared.bus.test_log_reader import lost_history

ENROL = "WEIR_ALLOCATOR_POLICIES=mine:fair"


@pytest.fixture(autouse=True)
def by_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the allocator's policy to config-manager, the simplest policy that grows jobs."""
    monkeypatch.setenv("WEIR_ALLOCATOR_POLICY", "config-manager")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return written(tmp_path, GOOD)


async def test_a_dry_run_shows_placement_and_reason(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    await bus.publish(node("big", cpu=4))

    said = await prompt("submit", job, "--dry-run", "--nats", nats_url)

    assert said.code == 0 and said.out.splitlines()[-4:] == [
        "job default/digits would start now with 1 ps, 1 worker, batch 32",
        "  why: the first size",
        "  where: big: chief, ps, worker",
        (
            "  policy: config-manager (the job names none; if the cluster uses another, set"
            " WEIR_ALLOCATOR_POLICY here)"
        ),
    ]
    assert await bus.last_message(JobRequested, "default.digits") is None
    assert (await (await bus.program_store()).status()).size == 0


async def test_a_dry_run_knows_nodes_whose_facts_were_purged(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    await lost_history(bus, await bus.publish(node("big", cpu=4)))

    said = await prompt("submit", job, "--dry-run", "--nats", nats_url)

    assert "  where: big: chief, ps, worker" in said.out.splitlines()


async def test_a_dry_run_shows_why_a_job_would_wait(
    nats_url: str, bus: Bus, prompt: Prompt, job: Path
) -> None:
    said = await prompt("submit", job, "--dry-run", "--nats", nats_url)

    assert "job default/digits would wait for room for a chief, 1 ps and 1 worker\n" in said.out


async def test_a_dry_run_uses_only_the_permissions_of_weir_up(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {
        "WEIR_ALLOCATOR_QUOTAS": '{"default": {"cpu": 0.5}}',
        "WEIR_ALLOCATOR_POLICIES": "mine:fair",
    }
    (job.parent / FILE).parent.mkdir()
    (job.parent / FILE).write_text(json.dumps({"nats_url": nats_url, "limits": limits}))
    monkeypatch.chdir(job.parent)

    said = await prompt("submit", job, "--dry-run")
    monkeypatch.setenv("WEIR_ALLOCATOR_QUOTAS", "{}")
    ours = await prompt("submit", job, "--dry-run")

    assert said.code == 1
    assert "  - quota of namespace default: needs at least 1 cpu, and the limit is 0.5" in said.err
    assert ours.code == 0 and "would wait for room" in ours.out


async def test_a_dry_run_lists_every_reason_against_a_job(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_ALLOCATOR_IMAGES", "registry.example/")
    monkeypatch.setenv("WEIR_JOB_NAMESPACES", "red")

    said = await prompt(
        "submit", written(job.parent, f"{GOOD}image: a/b\n"), "--dry-run", "--nats", nats_url
    )

    assert said.code == 1 and said.err.splitlines() == [
        f"weir submit: the request in {job} would be refused:",
        "  - namespace: jobs may not run in 'default'; allowed are red",
        "  - image: 'a/b' is not allowed; WEIR_ALLOCATOR_IMAGES allows registry.example/",
    ]


async def test_an_unknown_policy_is_refused_with_the_known_ones(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    for policy, told in (
        ("best", f"use one of {', '.join(sorted(POLICIES))}\n"),
        ("mine:fair", f"{ENROL}\n"),
    ):
        file = written(job.parent, f"{GOOD}policy: '{policy}'\n")

        said = await prompt("submit", file, "--dry-run", "--nats", nats_url)

        assert (
            said.code in (1, 2)
            and said.out == ""
            and f"  - policy: '{policy}' is not known; use one of " in said.err
        )
        assert told in said.err


async def test_a_dry_run_names_the_substitute_for_an_unknown_policy(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    await bus.publish(accepted(request("other", policy="mine:fair")))

    said = await prompt(
        "submit", written(job.parent, f"{GOOD}policy: static\n"), "--dry-run", "--nats", nats_url
    )

    assert said.code == 0 and said.out.splitlines()[-2:] == [
        "  policy: static",
        (
            "  not sure: policy mine:fair (of default/other) is not known here, so config-manager"
            f" was used in its place and may decide differently; set {ENROL}, and start in the"
            " folder of its module"
        ),
    ]


async def test_a_dry_run_reports_a_name_in_use(
    bus: Bus, nats_url: str, prompt: Prompt, job: Path
) -> None:
    await bus.publish(accepted())

    said = await prompt(
        "submit",
        written(job.parent, GOOD.replace("digits", "mnist")),
        "--dry-run",
        "--nats",
        nats_url,
    )

    assert "'mnist' has not ended yet in namespace 'default'" in said.err
