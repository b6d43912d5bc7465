"""Who watches is sent what is new, and so has the same board."""

from __future__ import annotations

from services.console.board.board import begun
from services.console.board.changes import NONE, changes
from services.console.board.series import MOST
from tests.console.board.builders import Log, decided, holding, progress
from tests.console.board.test_board import JOB, running


def test_only_what_changed_is_told() -> None:
    log = running()
    before = log.say(holding("n2"), holding("n3"))
    after = log.say(progress(300), holding("n2", others=1))

    told = changes(before, after)
    assert [node.name for node in told.nodes] == ["n2"] and [job.key for job in told.jobs] == [JOB]
    assert told.cluster == after.cluster[len(before.cluster) :] and told.decisions == ()


def test_what_is_gone_is_named_and_a_decision_told_once() -> None:
    log = running()
    before = log.say(holding("n2"))
    after = log.say(holding("n2", gone=True), decided(2))

    told = changes(before, after)
    assert told.gone_nodes == ("n2",) and [d.revision for d in told.decisions] == [2]


def test_nothing_new_is_nothing() -> None:
    board = running().board

    assert changes(board, board) is NONE
    assert changes(begun(), board) != NONE


def test_a_series_that_was_thinned_is_to_be_taken_whole() -> None:
    log = Log()
    for _ in range(MOST):
        log.say(holding())
    before = log.board

    assert changes(before, log.say(holding())).cluster is None
