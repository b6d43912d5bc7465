"""Tests of the board: it shows every message once, and nothing that no message contains."""

from __future__ import annotations

import msgspec

from services.allocator.job_views import job_view
from services.allocator.state.state import State
from services.console.board import figures
from services.console.board.board import apply, initial_board, with_reason
from services.console.board.cluster import HELD, Totals
from shared.messages import Alternative, JobFinished, Resources
from tests.allocator.builders import abandoned, accepted, exited, request, resumed
from tests.console.board.builders import Log, decided, finished, folded, holding, progress, tasks

JOB = "default.mnist"


def running() -> Log:
    """Return the log of a running job with one ps and one worker."""
    log = Log()
    log.say(
        holding(),
        request(),
        accepted(),
        decided(),
        holding(pods=3),
        resumed(1),
        progress(100),
        progress(200),
    )
    return log


def test_a_node_shows_its_load_by_job_and_that_of_others() -> None:
    board = Log().say(holding("n1", pods=2, others=3), holding("n2", pods=1, job="other"))

    n1 = board.nodes["n1"]
    assert (
        n1.load == {JOB: Resources(cpu=2, memory_gib=2)} and n1.others.cpu == 3 and n1.free.cpu == 3
    )
    assert board.nodes["n2"].load.keys() == {"default.other"}


def test_totals_are_the_sums_of_the_last_node_facts() -> None:
    log = Log()
    for pods in (0, 3, 1, 2):
        log.say(holding("n1", pods=pods), holding("n2", pods=1, others=0.1), holding("n3", cpu=0.3))
    board = log.say(holding("n3", cpu=0.3, gone=True), holding("n4", cpu=2, schedulable=False))

    nodes = board.nodes.values()
    assert {node.name for node in nodes} == {"n1", "n2", "n4"}
    assert board.totals == Totals(
        at_s=log.now_s,
        nodes=3,
        allocatable=18.0,
        ours=3.0,
        others=0.1,
        free=14.9,
        closed=2.0,
        **{f"{name}_gib": sum(getattr(node, name).memory_gib for node in nodes) for name in HELD},
    )
    assert board.totals.ours_gib == 3.0
    assert board.cluster[-1] == board.totals and len(board.cluster) == len(log.told)


def test_memory_is_shown_like_cores_as_held_and_used() -> None:
    board = running().board
    n1, story, totals = board.nodes["n1"], board.jobs[JOB], board.totals

    assert (n1.ours.memory_gib, story.held_resources.memory_gib, totals.ours_gib) == (
        3.0,
        3.0,
        3.0,
    ), "three pods of 1 GiB"
    assert (story.used_resources.memory_gib, totals.used_gib) == (1.0, 1.0), (
        "as its last report has it"
    )
    assert figures.memory_share(totals) == 3.0 / totals.allocatable_gib
    assert (
        figures.memory_use(totals) == 1.0 / totals.allocatable_gib
        and figures.memory_use(Totals()) is None
    )


def test_memory_not_held_by_our_jobs_is_others_or_free() -> None:
    fact = holding(pods=3)
    n1 = Log().say(msgspec.structs.replace(fact, free=Resources(cpu=5, memory_gib=50))).nodes["n1"]

    assert (n1.ours.memory_gib, n1.others.memory_gib, n1.free.memory_gib) == (3.0, 11.0, 50.0)
    assert n1.allocatable.memory_gib == 64.0


def test_a_memory_only_resize_increases_the_held_memory() -> None:
    log = running()
    fatter = tuple(
        msgspec.structs.replace(p, resources=Resources(cpu=1, memory_gib=2))
        for p in holding(pods=3).own
    )
    board = log.say(msgspec.structs.replace(holding(pods=3), own=fatter, seen="fatter"))

    assert (board.jobs[JOB].held_resources.cpu, board.jobs[JOB].held_resources.memory_gib) == (
        3.0,
        6.0,
    )


def test_a_jobs_view_is_the_one_of_weir_jobs() -> None:
    board = running().board

    assert board.jobs[JOB].view == job_view(board.state.jobs[JOB])
    assert (board.jobs[JOB].view.phase, board.jobs[JOB].view.samples) == ("Running", 200)


def test_the_allocators_reason_is_shown_with_the_job() -> None:
    log = running()
    log.board = with_reason(log.board, JOB, "no core is free")
    board = log.say(progress(300))

    assert board.jobs[JOB].view.why == "no core is free"


def test_every_report_is_a_point_of_the_curve() -> None:
    log = running()

    said = [
        (t.at_s, t.message.samples, t.message.loss)
        for t in log.told
        if type(t.message).__name__ == "ProgressReported"
    ]
    assert [(r.at_s, r.samples, r.loss) for r in log.board.jobs[JOB].reports] == said
    assert log.board.jobs[JOB].reports[-1].cpu == 1.5 and log.board.totals.used == 1.5


def test_a_repeated_message_counts_once() -> None:
    log = running()

    assert apply(log.board, log.told[-1]) is log.board
    twice = folded([each for told in log.told for each in (told, told)])
    assert twice == log.board


def test_a_decision_has_its_reason_the_rejected_sizes_and_its_cause() -> None:
    log = running()
    free = holding("n2")
    lost = Alternative(ps=2, workers=2, batch=32, why="slower")
    board = log.say(
        free, decided(2, workers=2, cause=free.id(), alternatives=(lost,), gain_s=40.0, cost_s=3.0)
    )

    decision = board.decisions[-1]
    assert board.jobs[JOB].decisions[-1] is decision
    assert (decision.reason, decision.alternatives, decision.gain_s) == (
        "capacity is free",
        (lost,),
        40.0,
    )
    assert (decision.gives.ps, decision.gives.workers, decision.gives.cpu) == (1, 2, 4.0)
    assert decision.event is not None and decision.event.message == free


def test_an_abandoned_generation_is_marked_everywhere() -> None:
    log = running()
    board = log.say(decided(2, workers=2), abandoned(2))

    assert (
        board.decisions[-1].abandoned == board.jobs[JOB].decisions[-1].abandoned == "Unschedulable"
    )
    assert board.decisions[0].abandoned == ""
    assert [type(mark.message).__name__ for mark in board.jobs[JOB].marks] == [
        "GenerationAbandoned"
    ]


def test_a_finished_job_keeps_its_history_and_uses_nothing() -> None:
    board = running().say(finished(samples=1000, step=100), holding())

    story = board.jobs[JOB]
    assert (story.view.phase, story.view.samples_per_second, story.used_resources.cpu) == (
        "Succeeded",
        0.0,
        0.0,
    )
    assert isinstance(story.finished, JobFinished) and len(story.reports) == 2
    assert board.totals.used == 0.0 and board.totals.ours == 0.0 and story.held[-1].cpu == 0.0


def test_a_job_without_pods_uses_nothing() -> None:
    log = running()
    assert log.board.totals.used == 1.5
    log.say(*(exited(task, 0, "Terminated") for task in tasks()))

    story = log.board.jobs[JOB]
    assert (story.view.samples_per_second, figures.time_left_s(story.view)) == (0.0, None)
    assert (story.used_resources.cpu, log.board.totals.used, log.board.totals.used_gib) == (
        0.0,
        0.0,
        0.0,
    )


def test_a_later_job_with_the_same_name_starts_without_history() -> None:
    log = running()
    later = msgspec.structs.replace(accepted(), uid=7)
    board = log.say(finished(), holding(), later)

    assert (board.jobs[JOB].uid, board.jobs[JOB].reports, board.jobs[JOB].view.phase) == (
        7,
        (),
        "Pending",
    )
    assert log.say(progress(900)).jobs[JOB].reports == (), "of the job before"


def test_a_snapshot_replaces_a_purged_beginning_of_the_log() -> None:
    log = running()
    board = initial_board(log.board.state, since_s=100.0)

    assert board.jobs[JOB].view.phase == "Running" and board.jobs[JOB].held_cpu == 3.0
    assert board.totals.ours == 3.0 and board.cluster == ()
    later = Log(board)
    later.last, later.now_s = log.last, 200.0
    assert later.say(progress(400)).jobs[JOB].reports[-1].samples == 400


def test_messages_of_unknown_jobs_are_ignored() -> None:
    assert Log().say(progress(5)).jobs == {} and initial_board(State()).jobs == {}


def test_events_shown_one_by_one_are_those_not_drawn_as_a_curve_or_load() -> None:
    kinds = {type(told.message).__name__ for told in running().board.events}

    assert kinds == {"JobRequested", "JobAccepted", "AllocationDecided", "TrainingResumed"}


def test_facts_read_before_their_orders_are_kept() -> None:
    """Facts and orders come in separate streams."""
    log = Log()
    board = log.say(resumed(1), progress(100), accepted(), decided(), progress(200))

    story = board.jobs[JOB]
    assert [report.samples for report in story.reports] == [100, 200] and board.early == ()
    assert (story.view.phase, story.view.generation, story.view.samples) == ("Running", 1, 200)
    assert story.generation_spans[0].gives == story.decisions[0].gives


def test_messages_with_a_guessed_future_uid_are_not_part_of_that_jobs_history() -> None:
    board = Log().say(progress(900, job="other"), accepted(), decided(), resumed(1), progress(200))

    assert [report.samples for report in board.jobs[JOB].reports] == [200]
