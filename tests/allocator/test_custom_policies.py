"""Tests of custom policies: they are found by name, and their targets are checked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.allocator.custom_policies import register_policies
from services.allocator.failures import Failure, FaultSearch
from services.allocator.policies.contract import JobSeen, Size, Want
from services.allocator.policies.registry import POLICIES
from services.allocator.policy_calls import desired_sizes
from services.allocator.service import Settings, load_policies
from shared.messages import Resources
from shared.runtime.app import BAD_SETTINGS, ServiceExit
from shared.runtime.config import BadSettings
from tests.allocator.builders import EVEN, request, span

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Yield a function that writes a policy module into the working directory.

    The module has one function with the given body.
    """
    before, path, names = dict(POLICIES), list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)

    def written(module: str, body: str) -> str:
        head = (
            "from services.allocator.policies import Want\n\n\ndef mine(cluster, jobs, now):\n    "
        )
        (tmp_path / f"{module}.py").write_text(f"{head}{body}\n")
        return f"{module}:mine"

    yield written
    sys.path[:] = path
    for name in set(sys.modules) - names:
        del sys.modules[name]
    POLICIES.clear()
    POLICIES.update(before)


def job(**fields: Any) -> JobSeen:
    asked = request("mnist", ps=span(1, most=2), workers=span(1, most=4))
    return JobSeen(key="default.mnist", request=asked, sizes=EVEN, submitted_s=0.0, **fields)


def want(text: str = "") -> str:
    """Return the body of a policy that wants one ps, two workers and batch 32. `text`: a change."""
    fields: dict[str, Any] = {
        "job": "default.mnist",
        "ps": 1,
        "workers": 2,
        "batch": 32,
        "reason": "because",
    }
    changed = fields | dict([text.split("=")] if text else [])
    return (
        "return"
        f" [Want({', '.join(f'{name}={_literal(value)}' for name, value in changed.items())})]"
    )


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, str) and value.isdigit() else repr(value)


def asked(name: str, seen: JobSeen) -> tuple[list[Want], list[Failure]]:
    register_policies([name])
    search = FaultSearch()
    wants, _ = desired_sizes({name: [seen]}, [], 0.0, search, False)
    return [*wants.values()], [*search.faulty.values()]


def test_a_function_in_the_working_directory_is_a_policy(write: Write) -> None:
    wants, failures = asked(write("first", want()), job())

    assert [(w.job, w.ps, w.workers) for w in wants] == [("default.mnist", 1, 2)] and failures == []


def test_loading_does_not_change_existing_policies(write: Write) -> None:
    before = POLICIES["static"]

    register_policies(["static", write("again", want())])
    mine = POLICIES["again:mine"]
    register_policies(["static", "again:mine"])

    assert POLICIES["static"] is before and POLICIES["again:mine"] is mine


def test_every_invalid_policy_name_has_its_reason(write: Write) -> None:
    write("broken", "return 1 +")
    names = ["best", "nowhere:mine", "broken:mine", "json:dumpss", "json:__name__"]

    with pytest.raises(BadSettings) as wrong:
        register_policies(names)

    told = str(wrong.value).splitlines()
    assert len(told) == len(names)
    assert (
        told[0].startswith("policy 'best': known policies are ") and "`module:function`" in told[0]
    )
    assert (
        told[1]
        == "policy 'nowhere:mine': it cannot be imported: ModuleNotFoundError: No module named"
        " 'nowhere'"
    )
    assert told[2].startswith("policy 'broken:mine': it cannot be imported: SyntaxError: ")
    assert "'json:dumpss': it cannot be imported: AttributeError: " in told[3]
    assert told[4] == "policy 'json:__name__': it is 'json', not a function of (cluster, jobs, now)"
    assert not set(names) & set(POLICIES)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise KeyError('size')", "'size'"),
        ("return None", "'NoneType' object is not iterable"),
        ("return ['more']", "it returned 'more', not a Target"),
        (
            want("job=default.other"),
            "it returned a target for default.other, a job that it was not given",
        ),
        (want("reason=7"), "its reason for default.mnist is 7, not a text"),
        (want("workers=5"), "it returned 5 workers for default.mnist; the request allows 1 to 4"),
        (want("ps=0"), "it returned 0 ps for default.mnist; the request allows 1 to 2"),
        (
            want("batch=64"),
            "it returned 64 as the batch of default.mnist; the request allows 1 to 32",
        ),
        (
            want("workers=all"),
            "it returned 'all' workers for default.mnist; the request allows 1 to 4",
        ),
        (
            want("workers=-1"),
            "it returned '-1' workers for default.mnist; the request allows 1 to 4",
        ),
        (f"return {want()[7:]} * 2", "it returned several targets for one job"),
        (
            want().replace("reason=", "faster=float('nan'), reason="),
            "its `speedup` for default.mnist is nan",
        ),
        (
            "import numpy; " + want().replace("workers=2", "workers=numpy.int64(2)"),
            "it returned np.int64(2) workers for default.mnist; the request allows 1 to 4",
        ),
        (
            want().replace("batch=32", "batch=32.0"),
            "it returned 32.0 as the batch of default.mnist; the request allows 1 to 32",
        ),
        (
            want().replace("reason=", "alternatives=('more',), reason="),
            "its alternatives for default.mnist are ('more',)",
        ),
    ],
)
def test_invalid_targets_of_a_policy_are_reported_and_ignored(
    write: Write, body: str, why: str
) -> None:
    wants, failures = asked(write("faulty", body), job())

    assert wants == [] and [(each.policy, each.job) for each in failures] == [
        ("faulty:mine", "default.mnist")
    ]
    assert failures[0].error.partition(": ")[2] == why


def test_waiting_and_keeping_the_size_are_always_valid_targets(write: Write) -> None:
    waits, _ = asked(write("waits", want().replace("ps=1, workers=2", "ps=0, workers=0")), job())
    stays, failures = asked(write("stays", want("workers=9")), job(size=Size(1, 9), batch=32))

    assert waits[0].size == Size(0, 0) and stays[0].size == Size(1, 9) and failures == []


def test_a_service_with_an_invalid_policy_does_not_start(write: Write) -> None:
    load_policies(Settings(policy=write("fine", want()), policies=("static", "fine:mine")))
    with pytest.raises(ServiceExit) as left:
        load_policies(Settings(policies=("fine:yours",)))

    assert left.value.code == BAD_SETTINGS


OLDER_POLICY = """
from services.allocator.placing.placement import Node, Room
from services.allocator.policies.contract import JobSeen, Want, at_start


def fewest_first(cluster: list[Node], jobs: list[JobSeen], now: float) -> list[Want]:
    room = Room(cluster)
    starting = [job for job in jobs if job.size is None]
    workers = {job.key: job.size.workers for job in jobs if job.size is not None and not job.busy}
    running = [job for job in jobs if job.key in workers]
    while hungry := [job for job in running if workers[job.key] < job.most.workers]:
        poorest = min(hungry, key=lambda job: workers[job.key])
        if room.put(poorest.key, poorest.sizes.worker) is None:
            running.remove(poorest)
        else:
            workers[poorest.key] += 1
    wants = [at_start(job, "its first size") for job in starting]
    for job in jobs:
        if job.size is not None and not job.busy:
            more, reason = workers[job.key], f"it has {job.size.told()}"
            wants.append(
                Want(
                    job=job.key, ps=job.size.ps, workers=more, batch=job.batch, reason=reason,
                    faster=2.0, apart=1.0, lesser=lambda size, batch: at_start(job, "less"),
                )
            )
    return wants
"""
"""The example policy of version 0.3, `deploy/policies/fewest_first.py`.

Its keywords have been renamed since.
"""
OLDER_NAMES = {
    "services.allocator.policies": "POLICIES JobSeen Policy Want",
    "services.allocator.policies.contract": (
        "BOUNDLESS PAUSE_S Size Node TaskLimits Quota ClusterQuota Quotas Plan Observed Reading"
        " Learned Timed Past Kin JobSeen JobList models_of Want Policy at_start left_open"
        " efficiency worth"
    ),
    "services.allocator.policies.registry": "POLICIES FITTERS MODELS ARRAYS Fitter",
    "services.allocator.placing.placement": (
        "FILLED ROLES Node Placing Room Size has_room ladder place place_most shrink"
    ),
}
"""The public names of version 0.3 that a policy could import, by module."""


def test_a_policy_written_for_the_previous_version_runs(write: Write, tmp_path: Path) -> None:
    (tmp_path / "older.py").write_text(OLDER_POLICY)
    seen = job(size=Size(1, 2), batch=32)

    wants, failures = asked("older:fewest_first", seen)

    assert failures == []
    assert [(w.ps, w.workers, w.reason, w.speedup) for w in wants] == [
        (1, 2, "it has 1 ps and 2 workers", 2.0)
    ]
    assert wants[0].cut(Size(1, 1), 16, "as far as there is room").workers == 1


@pytest.mark.parametrize("module", OLDER_NAMES)
def test_names_that_policies_of_the_previous_version_import_are_there(module: str) -> None:
    names = OLDER_NAMES[module].split()

    imported = importlib.import_module(module)

    assert [name for name in names if not hasattr(imported, name)] == []


def test_the_room_of_the_previous_version_has_the_older_names_of_its_quotas() -> None:
    older = importlib.import_module("services.allocator.placing.placement")
    left = Resources(cpu=4.0, memory_gib=8.0, gpu=0)

    room = older.Room([], purses={"default": left})

    assert room.purse("default.mnist") == left and room.purses == {"default": left}
    assert room.purse("team-a.mnist") is None
