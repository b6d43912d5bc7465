"""Tests of the tables of a state: they follow its facts, and are stored with their models."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from services.allocator import snapshot
from services.allocator.decide import decide, prepare_tables
from services.allocator.policies.contract import ClusterQuota, JobList, Quota, TaskLimits
from services.allocator.policies.weir.job_rows import JobRow
from services.allocator.settings import Rules
from services.allocator.state.state import State, without_tables
from services.allocator.state.table_updates import decode_models, encode_models
from services.allocator.state.tables import Tables
from shared.messages import CancelRequested, JobAccepted, JobFinished, Resources, Taint
from tests.bench.decide_world import Cluster, with_quotas

WEIR = Rules(policy="weir")
POLICIES = ("weir", "dike", "dlrover", "elastic-batch", "flowcon", "optimus", "static")


def is_alike(one: State, other: State, rules: Rules) -> bool:
    """Return True if the tables are the same up to rounding.

    Models are rounded differently if they are fitted with others.
    """
    mine, theirs = prepare_tables(one, rules).tables, prepare_tables(other, rules).tables
    assert mine is not None and theirs is not None
    assert [*mine.ranks] == [*theirs.ranks]
    for listed in mine.by_policy.values():
        assert [replace(job, quota=None) for job in listed] == [
            replace(mine.jobs[job.key], quota=None) for job in listed
        ]
    for key, job in mine.jobs.items():
        if isinstance(job.model, JobRow):
            row = theirs.jobs[key].model
            for part in ("numbers", "steps", "untried"):
                has, wants = (np.frombuffer(getattr(each, part)) for each in (job.model, row))
                np.testing.assert_allclose(has, wants, rtol=1e-6)
    return _without_models(mine) == _without_models(theirs)


def _without_models(tables: Tables) -> Tables:
    jobs = {key: replace(job, model=None) for key, job in tables.jobs.items()}
    by_policy = {
        name: JobList([jobs[job.key] for job in listed])
        for name, listed in tables.by_policy.items()
    }
    return replace(
        tables, jobs=jobs, by_policy=by_policy, programs=replace(tables.programs, fits={})
    )


def grown(rules: Rules, jobs: int = 10) -> Cluster:
    """Return a cluster: half of the jobs have run at two sizes, the others are new."""
    cluster = Cluster(16, jobs, 5, 2, rules)
    cluster.accept(0, jobs // 2)
    for _ in range(2):
        cluster.settle()
        cluster.report()
    cluster.accept(jobs // 2, jobs)
    return cluster


@pytest.mark.parametrize(
    "rules", [WEIR, with_quotas(16), Rules(policy="dike")], ids=["weir", "quotas", "dike"]
)
def test_incrementally_updated_tables_equal_recomputed_ones(rules: Rules) -> None:
    cluster = grown(rules)
    story = cluster.story

    def check() -> None:
        story.state = prepare_tables(story.state, rules)
        anew = replace(without_tables(story.state), models=b"")
        assert is_alike(story.state, anew, rules)

    check()
    for _ in range(8):
        story.hear(cluster.stir())
        check()
        story.hear(cluster.report_one())
        check()
        story.decide(after_s=30.0)
        cluster.follow()
        check()
    runs = next(job.active_decision for job in story.state.jobs.values() if job.active_decision)
    node = story.state.nodes[runs.tasks[0].node]
    story.hear(replace(node, taints=(Taint(key="gone", effect="NoSchedule"),), seen="tainted"))
    check()
    story.hear(replace(node, gone=True, seen="gone"))
    check()
    job = next(job for job in story.state.jobs.values() if job.running)
    story.hear(CancelRequested(job=job.request.job, namespace=job.request.namespace))
    check()
    over = JobFinished(
        job=job.request.job, namespace=job.request.namespace, uid=job.uid, outcome="succeeded"
    )
    story.hear(over)
    check()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stored_state_gives_the_same_decisions(policy: str) -> None:
    rules = Rules(policy=policy)
    cluster = grown(rules)
    state, now = prepare_tables(cluster.story.state, rules), cluster.story.now + 60.0
    stored = snapshot.encode_snapshot(state)
    again = msgspec.json.decode(zlib.decompress(stored), type=State)
    assert again.tables is None and again.models
    assert decide(again, now, rules) == decide(state, now, rules)
    for fact in (cluster.stir(), cluster.report_one()):
        cluster.story.state = again
        cluster.story.hear(fact)
        told = cluster.story.state
        from_facts = replace(without_tables(told), models=b"")
        assert decide(told, now, rules) == decide(from_facts, now, rules)


def read_back(state: State) -> State:
    return msgspec.json.decode(zlib.decompress(snapshot.encode_snapshot(state)), type=State)


def is_as_from_facts(state: State, rules: Rules) -> bool:
    return is_alike(state, replace(without_tables(state), models=b""), rules)


@pytest.mark.parametrize("policy", ["weir", "dlrover"])
def test_stored_models_of_other_task_sizes_are_fitted_again(policy: str) -> None:
    """A LimitRange raised the tasks when the models were stored; it is gone after the restart."""
    rules = Rules(policy=policy)
    least = TaskLimits(least=Resources(cpu=8.0, memory_gib=8.0))
    state = grown(rules).story.state
    spaces = {job.request.namespace for job in state.jobs.values()}
    limited = replace(rules, quotas={space: ClusterQuota(tasks=least) for space in spaces})
    again = read_back(prepare_tables(state, limited))
    assert is_as_from_facts(again, rules)
    assert decide(again, 5000.0, rules) == decide(
        replace(without_tables(state), models=b""), 5000.0, rules
    )


def test_stored_rows_are_updated_when_a_job_of_the_program_ends() -> None:
    cluster = grown(WEIR)
    cluster.story.state = read_back(prepare_tables(cluster.story.state, WEIR))
    job = next(job for job in cluster.story.state.jobs.values() if job.running and job.progress)
    over = JobFinished(
        job=job.request.job, namespace=job.request.namespace, uid=job.uid, outcome="succeeded"
    )
    cluster.story.hear(over)
    assert is_as_from_facts(cluster.story.state, WEIR)


def test_a_name_reused_under_another_policy_leaves_its_program() -> None:
    """The end of the first job and the second job are read before the next decision."""
    cluster = grown(WEIR)
    story = cluster.story
    story.state = prepare_tables(story.state, WEIR)
    job = next(iter(story.state.jobs.values()))
    asked = replace(job.request, policy="static")
    story.hear(
        JobFinished(job=asked.job, namespace=asked.namespace, uid=job.uid, outcome="succeeded"),
        JobAccepted(
            job=asked.job, namespace=asked.namespace, uid=900, request=asked, accepted_s=story.now
        ),
    )
    state = prepare_tables(story.state, WEIR)
    assert state.tables is not None and job.key not in state.tables.programs.of_job
    assert is_as_from_facts(state, WEIR)


def test_a_policy_sees_the_quota_left_by_other_policies_jobs() -> None:
    cluster = grown(WEIR)
    story = cluster.story
    first = next(job for job in story.state.jobs.values() if job.active_decision)
    space = first.request.namespace
    alone = prepare_tables(story.state, replace(WEIR, quotas={space: Quota(cpu=100.0)})).tables
    assert alone is not None
    assert {job.quota for job in alone.by_policy["weir"] if job.request.namespace == space} == {
        Quota(cpu=100.0)
    }
    jobs = story.state.jobs | {
        first.key: replace(first, request=replace(first.request, policy="static"))
    }
    mixed = replace(without_tables(story.state), jobs=jobs)
    tables = prepare_tables(mixed, replace(WEIR, quotas={space: Quota(cpu=100.0)})).tables
    assert tables is not None
    held = sum(task.resources.cpu for task in first.active_decision.tasks)
    seen = {job.quota for job in tables.by_policy["weir"] if job.request.namespace == space}
    assert held > 0 and seen == {Quota(cpu=100.0 - held)}
    assert tables.jobs[first.key].quota == Quota(cpu=100.0)


def test_models_of_another_version_are_not_read() -> None:
    state = prepare_tables(grown(WEIR).story.state, WEIR)
    assert state.tables is not None
    models = encode_models(state.tables)
    found = decode_models(models)
    assert found is not None and len(found.rows) == 10
    other = msgspec.msgpack.encode(replace(found, layout="0.0.1"))
    assert decode_models(other) is None and decode_models(b"nothing of it") is None
    now = 5000.0
    for unread in (other, b"nothing of it", b""):
        odd = replace(without_tables(state), models=unread)
        assert decide(odd, now, WEIR) == decide(state, now, WEIR)


DECIDE_ON = """
import sys, time, zlib
from pathlib import Path
import msgspec
from services.allocator.decide import decide, prepare_tables
from services.allocator.policies.weir.job_rows import JobRow
from services.allocator.settings import Rules
from services.allocator.state.state import State

def read(name):
    return msgspec.json.decode(zlib.decompress(Path(name).read_bytes()), type=State)

rules, now = Rules(policy="weir"), float(sys.argv[1])
decide(prepare_tables(read(sys.argv[2]), rules), now, rules)
state = prepare_tables(read(sys.argv[3]), rules)
begun = time.perf_counter()
decisions = decide(state, now, rules)
took = time.perf_counter() - begun
print(msgspec.json.encode((took, decisions.actions, decisions.why)).decode())
"""


def test_a_new_process_decides_the_same_from_a_stored_state(tmp_path: Path) -> None:
    """The test prints the time of the decision; `make bench-decide` measures it."""
    warm, cluster = grown(WEIR, 4), grown(WEIR, 40)
    now = cluster.story.now + 60.0
    state = prepare_tables(cluster.story.state, WEIR)
    (tmp_path / "warm").write_bytes(
        snapshot.encode_snapshot(prepare_tables(warm.story.state, WEIR))
    )
    (tmp_path / "state").write_bytes(snapshot.encode_snapshot(state))
    command = [
        sys.executable,
        "-c",
        DECIDE_ON,
        str(now),
        str(tmp_path / "warm"),
        str(tmp_path / "state"),
    ]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    took_s, actions, why = msgspec.json.decode(told.stdout)
    begun = time.perf_counter()
    here = decide(state, now, WEIR)
    print(
        f"fresh process: {took_s * 1e3:.1f} ms; here: {(time.perf_counter() - begun) * 1e3:.1f} ms"
    )
    assert [actions, why] == msgspec.json.decode(msgspec.json.encode((here.actions, here.why)))
    assert actions
