"""The result of a run: the counts of every job, leaks, losses, and the figures."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import Any

from msgspec.structs import replace

from services.allocator import snapshot
from services.allocator.state.state import CONSUMED, State, apply
from services.local.kubelet import processes
from services.trainer.checkpoint_policy import FIRST_INTERVAL_S, REDO_S
from shared.bus.consumer import StoredMessage
from shared.bus.subjects import DEAD
from shared.messages import CheckpointSaved, JobAccepted, JobFinished
from tests.bench.chaos import standing, tallies
from tests.bench.chaos.naive import Rounds
from tests.bench.chaos.play import Play
from tests.bench.chaos.tallies import Counted, Record
from tests.bench.chaos.world import BATCH, EVERY_S, EXAMPLES, World
from tests.bench.report import say
from tests.trainer import fleet

TIDY_S, LOOK_S = 30.0, 0.5


async def result(world: World, play: Play, rounds: Rounds) -> dict[str, Any]:
    logs = {uid: standing.of_job(world.watch.heard, uid) for uid in play.jobs}
    succeeded = {uid: log for uid, log in logs.items() if _succeeded(log)}
    counts = [await read_job_counts(log, play.jobs[uid]) for uid, log in succeeded.items()]
    together = [log for log in succeeded.values() if _makes_updates_together(log)]
    wrong = [tallies.updates_wrong(log, play.jobs[uid], EXAMPLES) for uid, log in succeeded.items()]
    return {
        **struck(play.records),
        "examples_lost": sum(c.lost for c in counts),
        "applied_twice": sum(c.twice for c in counts),
        "applied_twice_bound": sum(c.bound for c in counts),
        "applied_twice_within": all(c.twice <= c.bound for c in counts),
        "jobs_with_table": sum(c.rows_wrong is not None for c in counts),
        "rows_wrong": sum(c.rows_wrong or 0 for c in counts),
        "rows_wrong_within": all((c.rows_wrong or 0) <= c.rows_bound for c in counts),
        "global_batch_jobs": len(together),
        "updates_wrong": [text for text in wrong if text],
        "pods_leaked": await leaked(world),
        "jobs": len(play.jobs),
        "jobs_finished": len(counts),
        **await lost(world, logs),
        "recovery_s": tallies.recovery(play.records),
        **redone(world, logs.values(), play.records),
        "own_failures": [pod for log in logs.values() for pod in tallies.own_failures(log)],
        **by_kind(world, logs.values(), play.records),
        "lost_worker_gap_s": gap_s(world, play.records),
        **_naive(rounds),
        "ended_by_themselves": _surplus(world),
        "disk_full_by": world.disk_by,
    }


def redone(
    world: World, logs: Iterable[list[StoredMessage]], records: list[Record]
) -> dict[str, Any]:
    """Return the most training that one job repeated, in checkpoint intervals and in s.

    Generations that resumed while the disk was full are left out.
    """
    full = [(r.struck_s, r.settled_s) for r in records if r.fault.kind == "disk full" and r.hit]
    beats = world.beats(0.0, float("inf"))
    found = [(max(tallies.redone_s(log, beats, full), default=0.0), log) for log in logs]
    most_s = max((again_s for again_s, _ in found), default=0.0)
    intervals = [
        again_s / tallies.interval_s(log, EVERY_S or FIRST_INTERVAL_S) for again_s, log in found
    ]
    return {
        "redone_intervals_max": round(max(intervals, default=0.0), 3),
        "redone_s_max": round(most_s, 2),
        "redone_s_bound": REDO_S,
        "redone_s_within": most_s <= REDO_S,
    }


def by_kind(
    world: World, logs: Iterable[list[StoredMessage]], records: list[Record]
) -> dict[str, Any]:
    """Return how long commits waited for lost servers, and training repeated for drains, in s."""
    every, beats = [*logs], world.beats(0.0, float("inf"))
    waits, again = list[float](), list[float]()
    for record in records:
        spans = (record.struck_s, record.settled_s)
        if record.hit and record.fault.kind in IN_COMMIT:
            waits.append(
                round(max((tallies.commit_wait_s(log, *spans) for log in every), default=0.0), 2)
            )
        if record.hit and record.fault.kind == "node drained":
            again += [tallies.redone_between_s(log, beats, *spans) for log in every]
    return {"commit_waits_s": waits, "drained_redone_s_max": round(max(again, default=0.0), 2)}


IN_COMMIT = ("nats killed in commit", "nats frozen in commit")


def _succeeded(log: list[StoredMessage]) -> bool:
    over = standing.finished(log)
    return over is not None and over.outcome == "succeeded"


def _makes_updates_together(log: list[StoredMessage]) -> bool:
    return standing.of(log, JobAccepted)[-1].request.makes_updates_together


def struck(records: list[Record]) -> dict[str, Any]:
    hits = [r for r in records if r.hit]
    return {
        "faults": len(hits),
        "kinds": dict(sorted(Counter(r.fault.kind for r in hits).items())),
        "faults_on_training": sum(r.fault.trains for r in hits),
        "faults_in_hand_over": sum(r.fault.inside for r in hits),
        "not_recovered": [
            f"{r.fault.told()}: {r.trouble}" for r in records if r.recovered_s is None
        ],
    }


async def read_job_counts(log: list[StoredMessage], epochs: int) -> Counted:
    """Return how often each example was applied, as counted in the job's last checkpoint.

    Another process reads the checkpoint.
    """
    over = standing.of(log, JobFinished)[-1]
    last = [m for m in standing.of(log, CheckpointSaved) if m.samples == over.samples][-1]
    said = await asyncio.to_thread(fleet.read_counts, last.path)
    lost, dropped = tallies.workers_lost(log), tallies.gradients_dropped(log)
    found = tallies.compare_counts(said["counts"], epochs, BATCH * (lost + dropped))
    for rows in said["rows"]:
        found = replace(
            found,
            rows_wrong=tallies.rows_wrong(rows, epochs, EXAMPLES, BATCH),
            rows_bound=0 if _makes_updates_together(log) else BATCH * lost,
        )
    say(f"{over.job}: {found}")
    return found


def gap_s(world: World, records: list[Record]) -> float | None:
    """Return the longest time in s without an update after a worker was lost at rest.

    Only losses with more than one worker count.
    """
    lost = [
        r
        for r in records
        if r.fault.kind == "worker killed" and not r.fault.inside and r.workers > 1 and r.hit
    ]
    gaps = [
        tallies.longest_gap_s(world.beats(0.0, float("inf")), r.struck_s, r.settled_s) for r in lost
    ]
    return round(max(gaps), 2) if gaps else None


def _naive(rounds: Rounds) -> dict[str, Any]:
    if not rounds.naive_s:
        return {}
    lost_s, naive_s = statistics.median(rounds.lost_ps_s), statistics.median(rounds.naive_s)
    return {"lost_ps_s": lost_s, "naive_s": naive_s, "lost_ps_ratio": lost_s / naive_s}


# ---------------------------------------------------------------- leaks and losses


async def leaked(world: World) -> int:
    """Return the number of pods and processes that are left after all jobs.

    Wait for their end for up to `TIDY_S`. If the API server times out, ask again: the machine may
    stop for seconds while many processes end at once.
    """
    until, home = time.monotonic() + TIDY_S, processes.cluster_id(world.folder / "weir" / "cluster")
    while True:
        try:
            pods = [*await world.pods(), *await world.pods("tenants")]
        except TimeoutError:
            if time.monotonic() > until:
                raise
            continue
        if not pods and not processes.processes_of_cluster(home):
            return 0
        if time.monotonic() > until:
            say(
                f"left: {[p['metadata']['name'] for p in pods]}, processes"
                f" {processes.processes_of_cluster(home)}"
            )
            return max(len(pods), len(processes.processes_of_cluster(home)))
        await asyncio.sleep(LOOK_S)


async def lost(world: World, logs: dict[int, list[StoredMessage]]) -> dict[str, Any]:
    """Return how many messages were lost, and of which kinds; see `tallies`."""
    letters = int((await world.watch.bus.js.stream_info(DEAD)).state.messages)
    found = {
        "requests_unanswered": len(tallies.unanswered(world.watch.heard)),
        "revisions_missing": sum(tallies.revisions_missing(log) for log in logs.values()),
        "generations_endless": sum(len(tallies.endless(log)) for log in logs.values()),
        "jobs_misremembered": await misremembered(world),
        "dead_letters": letters,
    }
    return {
        "messages_lost": sum(found.values()),
        "messages_lost_by": {k: v for k, v in found.items() if v},
    }


async def misremembered(world: World) -> int:
    """Return for how many jobs the allocator's snapshot differs from a replay of the streams."""
    known = await snapshot.load_snapshot(world.watch.bus)
    stored = [h for h in world.watch.stored() if isinstance(h.message, CONSUMED)]
    log = [h for h in stored if h.sequence <= known.sequences[h.stream]]
    log.sort(key=lambda heard: heard.stored_s)
    read = reduce(lambda s, h: apply(s, h.message, h.stream, h.sequence, h.stored_s), log, State())
    ours, theirs = _decided(known), _decided(read)
    wrong = [key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)]
    for key in wrong:
        say(f"{key} is remembered as {ours.get(key)}\nand read as {theirs.get(key)}")
    return len(wrong)


def _decided(state: State) -> dict[str, object]:
    """Return the jobs of a state, without fields that depend on the order of reading two streams.

    These are the last report and means of speeds. Fields computed from reports are left out too,
    because some reports may have been purged before they were read.
    """
    quiet = {
        "progress": None,
        "observed": (),
        "tried": (),
        "recent": (),
        "curve": (),
        "furthest": 0,
    }
    jobs: dict[str, Any] = {**state.jobs, **{k: c.job for k, c in state.closed.items()}}
    return {key: replace(job, **quiet) for key, job in jobs.items()}


def _surplus(world: World) -> dict[str, int]:
    """Return how often each part of the stack exited without having been killed."""
    found = {name: part.restarts - world.killed[name] for name, part in world.stack.parts.items()}
    return {name: many for name, many in found.items() if many}
