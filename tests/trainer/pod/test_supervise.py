"""Tests of the actions of a pod after each fact (`supervise`)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.pod import supervise
from services.trainer.pod.supervise import (
    Action,
    BeginChild,
    DrainChild,
    EndChild,
    GoOnChild,
    LeavePod,
    Pod,
    ReadAheadChild,
    SaveChild,
    SayLastIsFinal,
    StartChild,
    StayForNext,
)
from shared.messages import (
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    HandOverOrdered,
    TrainingResumed,
)
from tests.trainer.builders import abandoned, final, order, resumed, spec

ANSWERS: dict[type, Any] = {
    ClusterSpecPublished: supervise.on_spec,
    HandOverOrdered: supervise.on_hand_over,
    CheckpointSaved: supervise.on_final,
    TrainingResumed: supervise.on_resumed,
    GenerationAbandoned: supervise.on_abandoned,
}


class Teller:
    """A pod that gets facts and returns its actions after each."""

    def __init__(self, name: str = "chief-0") -> None:
        self.pod = Pod(name=name)

    def hear(self, fact: Any) -> list[Action]:
        self.pod, actions = ANSWERS[type(fact)](self.pod, fact)
        return list(actions)

    def hear_all(self, *facts: Any) -> list[Action]:
        return [action for fact in facts for action in self.hear(fact)]

    def prepared(self, generation: int) -> list[Action]:
        self.pod, actions = supervise.on_prepared(self.pod, generation)
        return list(actions)

    def gone(self, generation: int, broken: bool) -> None:
        self.pod = supervise.on_child_gone(self.pod, generation, broken)


def running(name: str = "chief-0", handover: str = "make-before-break") -> Teller:
    """Return a pod in which generation 1 trains."""
    teller = Teller(name)
    teller.hear(spec(1, handover=handover))
    teller.prepared(1)
    teller.hear_all(order(1), resumed(1))
    return teller


def beside(name: str = "chief-0") -> Teller:
    """Return a pod in which generation 1 trains and generation 2 is prepared."""
    teller = running(name)
    teller.hear(spec(2, previous=1))
    teller.prepared(2)
    return teller


@pytest.mark.parametrize(
    ("handover", "ended"), [("make-before-break", []), ("restart", [EndChild(1)])]
)
def test_a_broken_generation_ends_at_once_with_a_restart_hand_over(
    handover: str, ended: list[Action]
) -> None:
    wanted = spec(2, handover=handover)
    assert running(handover=handover).hear(wanted) == [
        *ended,
        StartChild(wanted, fresh=handover == "restart"),
    ]


# ------------------------------------------------------------ the first generation


def test_a_pod_in_the_spec_starts_a_child() -> None:
    assert Teller().hear(spec(1)) == [StartChild(spec(1), fresh=False)]


def test_a_pod_outside_the_spec_does_nothing() -> None:
    assert Teller("worker-9").hear(spec(1)) == []


def test_the_first_generation_begins_from_the_ledger_when_ordered() -> None:
    teller = Teller()
    teller.hear(spec(1))

    assert teller.prepared(1) == []
    assert teller.hear(order(1)) == [BeginChild(1, None, chief=True)]


def test_an_order_before_the_child_is_ready_is_kept() -> None:
    teller = Teller()
    teller.hear_all(spec(1), order(1))

    assert teller.prepared(1) == [BeginChild(1, None, chief=True)]


# ------------------------------------------------------------ make before break


def test_the_next_generation_starts_beside_the_running_one() -> None:
    assert running().hear(spec(2, previous=1)) == [StartChild(spec(2, previous=1), fresh=False)]


def test_a_prepared_child_waits_for_the_order() -> None:
    teller = running()
    teller.hear(spec(2, previous=1))

    assert teller.prepared(2) == []


def test_the_running_chief_drains_when_the_hand_over_is_ordered() -> None:
    assert beside().hear(order(2, previous=1)) == [DrainChild(1, successor=2)]


def test_servers_get_their_full_cpu_weight_when_the_hand_over_is_ordered() -> None:
    assert beside("ps-0").hear(order(2, previous=1)) == [BeginChild(2, None, chief=False)]


def test_the_next_chief_begins_from_the_final_checkpoint() -> None:
    teller = beside()
    teller.hear(order(2, previous=1))

    assert teller.hear(final(1)) == [BeginChild(2, final(1).path, chief=True)]


def test_older_children_end_when_the_next_generation_trains() -> None:
    teller = beside()
    teller.hear_all(order(2, previous=1), final(1))

    assert teller.hear(resumed(2)) == [EndChild(1)]
    assert teller.pod.children == {2: "running"}


def test_an_unneeded_pod_ends_its_child_when_the_next_generation_trains() -> None:
    teller = running("worker-1")
    teller = Teller("worker-1")
    teller.hear(spec(1, pods=["chief-0", "ps-0", "worker-0", "worker-1"]))
    teller.prepared(1)

    assert teller.hear_all(order(1), spec(2, previous=1), order(2, previous=1), final(1)) == [
        BeginChild(1, None, chief=False)
    ]
    assert teller.hear(resumed(2)) == [EndChild(1)]


def test_a_new_pod_joins_with_its_first_generation() -> None:
    teller = Teller("chief-1")
    wanted = spec(2, previous=1, pods=["chief-1", "ps-0", "worker-0"])

    assert teller.hear(wanted) == [StartChild(wanted, fresh=False)]
    teller.prepared(2)
    assert teller.hear(order(2, previous=1)) == []
    assert teller.hear(final(1)) == [BeginChild(2, final(1).path, chief=True)]


def test_a_checkpoint_read_before_its_order_is_kept() -> None:
    teller = Teller("chief-1")
    teller.hear(spec(2, previous=1, pods=["chief-1", "ps-0"]))
    teller.hear(final(1))
    teller.prepared(2)

    assert teller.hear(order(2, previous=1)) == [BeginChild(2, final(1).path, chief=True)]


def test_only_the_newest_generation_can_be_ordered() -> None:
    teller = beside()
    teller.hear(spec(3, previous=1))

    assert teller.hear(order(2, previous=1)) == []


# ------------------------------------------------------------ restart


def test_with_restart_the_chief_drains_at_once_and_nobody_starts() -> None:
    assert running(handover="restart").hear(spec(2, previous=1, handover="restart")) == [
        DrainChild(1, successor=2)
    ]
    assert running("ps-0", handover="restart").hear(spec(2, previous=1, handover="restart")) == []


@pytest.mark.parametrize("name", ["chief-0", "ps-0"])
def test_with_restart_children_start_freshly_when_the_checkpoint_is_saved(name: str) -> None:
    teller, wanted = running(name, handover="restart"), spec(2, previous=1, handover="restart")
    teller.hear(wanted)

    assert teller.hear(final(1)) == [EndChild(1), StartChild(wanted, fresh=True)]


def test_with_restart_the_chief_begins_from_that_checkpoint() -> None:
    teller = running(handover="restart")
    teller.hear_all(spec(2, previous=1, handover="restart"), final(1))
    teller.prepared(2)

    assert teller.hear(order(2, previous=1)) == [BeginChild(2, final(1).path, chief=True)]


def test_with_restart_a_stopped_generation_starts_again_if_the_next_is_abandoned() -> None:
    teller = running(handover="restart")
    teller.hear_all(spec(2, previous=1, handover="restart"), final(1))

    again = spec(1, handover="restart")
    assert teller.hear(abandoned(2)) == [EndChild(2), StartChild(again, fresh=True)]
    assert teller.prepared(1) == [BeginChild(1, final(1).path, chief=True)]


def test_with_restart_an_abandonment_before_the_checkpoint_continues_training() -> None:
    teller = running(handover="restart")
    teller.hear(spec(2, previous=1, handover="restart"))

    assert teller.hear(abandoned(2)) == [GoOnChild(1)]


# ------------------------------------------------------------ abandoned


def test_an_abandonment_before_the_drain_ends_only_the_new_child() -> None:
    teller = beside()

    assert teller.hear(abandoned(2)) == [EndChild(2)]
    assert teller.pod.children == {1: "running"}


def test_an_abandonment_during_the_drain_continues_the_previous_generation() -> None:
    teller = beside()
    teller.hear(order(2, previous=1))

    assert teller.hear(abandoned(2)) == [EndChild(2), GoOnChild(1)]


def test_an_abandonment_after_the_drain_continues_the_previous_generation() -> None:
    teller = beside()
    teller.hear_all(order(2, previous=1), final(1))

    assert teller.hear(abandoned(2)) == [EndChild(2), GoOnChild(1)]
    assert teller.pod.children == {1: "running"}


def test_a_continued_generation_drains_again_and_its_old_checkpoint_is_void() -> None:
    teller = beside()
    teller.hear_all(order(2, previous=1), final(1), abandoned(2), spec(3, previous=1))
    teller.prepared(3)

    assert teller.hear(order(3, previous=1)) == [DrainChild(1, successor=3)]
    assert teller.hear(final(1, path="/c/later")) == [BeginChild(3, "/c/later", chief=True)]


def test_a_child_ready_after_its_abandonment_does_not_count() -> None:
    teller = running()
    teller.hear_all(spec(2, previous=1), abandoned(2))

    assert teller.prepared(2) == [] and teller.pod.children == {1: "running"}


def test_a_superseded_preparing_generation_ends() -> None:
    assert beside().hear(spec(3, previous=1)) == [
        EndChild(2),
        StartChild(spec(3, previous=1), fresh=False),
    ]


def test_an_abandonment_of_a_running_generation_is_ignored() -> None:
    teller = beside()
    teller.hear_all(order(2, previous=1), final(1), resumed(2))

    assert teller.hear(abandoned(2)) == []
    assert teller.pod.children == {2: "running"}


# ------------------------------------------------------------ a chief that lost a task


def test_a_broken_chief_offers_its_last_checkpoint() -> None:
    teller = running()
    teller.gone(1, broken=True)
    teller.hear(spec(2, previous=1, pods=["chief-0", "ps-0", "worker-7"]))
    teller.prepared(2)

    assert teller.hear(order(2, previous=1)) == [SayLastIsFinal(1, successor=2)]
    assert teller.hear(final(1)) == [BeginChild(2, final(1).path, chief=True)]


def test_with_restart_a_broken_chief_offers_its_checkpoint_at_once() -> None:
    teller = running(handover="restart")
    teller.gone(1, broken=True)

    assert teller.hear(spec(2, previous=1, handover="restart")) == [SayLastIsFinal(1, successor=2)]


def test_without_a_checkpoint_the_next_generation_begins_from_the_ledger() -> None:
    teller = running()
    teller.gone(1, broken=True)
    teller.hear(spec(2, previous=1))
    teller.prepared(2)
    teller.hear(order(2, previous=1))

    assert teller.hear(final(1, path="")) == [BeginChild(2, None, chief=True)]


def test_a_failed_preparation_does_not_affect_the_running_child() -> None:
    teller = running()
    teller.hear(spec(2, previous=1))
    teller.gone(2, broken=False)

    assert teller.pod.children == {1: "running"}
    assert teller.hear(abandoned(2)) == []


# ------------------------------------------------------------ a child that ends by itself


def ends(teller: Teller, generation: int, *, peer: bool = True, explained: bool = False) -> str:
    return supervise.on_child_end(teller.pod, generation, peer=peer, explained=explained)


def test_a_generation_whose_ps_are_too_small_is_given_up_and_not_the_job() -> None:
    teller, first = beside("chief-0"), Teller("chief-0")
    first.hear(spec(1))

    for pod in (teller.pod, first.pod):
        ending = supervise.on_child_end(pod, pod.newest, peer=False, explained=True, too_small=True)
        assert ending == "is missed by its generation"


@pytest.mark.parametrize("name", ["chief-0", "ps-0", "worker-0"])
def test_the_exit_of_a_running_child_ends_its_pod(name: str) -> None:
    assert ends(running(name), 1) == "ends the pod"


def test_only_a_chief_that_lost_a_task_stays() -> None:
    assert ends(running(), 1, explained=True) == "breaks"
    assert ends(running("ps-0"), 1, explained=True) == "ends the pod"


def test_a_program_error_fails_the_job_once_it_trains() -> None:
    assert ends(running(), 1, peer=False, explained=True) == "fails the job"
    assert ends(beside(), 2, peer=False, explained=True) == "is missed by its generation"
    assert ends(beside(), 1, peer=False, explained=True) == "fails the job"


@pytest.mark.parametrize("name", ["chief-0", "ps-0", "worker-0"])
def test_before_training_a_lost_child_fails_only_its_generation(name: str) -> None:
    teller = running(name)
    teller.hear(spec(2, previous=1))
    assert ends(teller, 2) == "prepares again"
    teller.prepared(2)
    assert ends(teller, 2) == "is missed by its generation"
    teller.hear_all(order(2, previous=1), final(1, successor=2))
    assert teller.pod.children[2] == "running" and ends(teller, 2) == "is missed by its generation"
    teller.gone(2, broken=False)
    assert teller.hear(abandoned(2)) == ([GoOnChild(1)] if name == "chief-0" else [])


def test_without_a_running_generation_the_exit_of_a_begun_child_ends_its_pod() -> None:
    teller = Teller()
    teller.hear(spec(1))
    teller.prepared(1)
    assert ends(teller, 1) == "is missed by its generation", "it may be prepared anew"
    teller.hear(order(1))
    assert ends(teller, 1) == "ends the pod"
    assert ends(teller, 1, peer=False, explained=True) == "fails the job"


def test_a_pod_without_its_child_exits_once_the_generation_trains() -> None:
    teller = beside("worker-0")
    teller.hear(order(2, previous=1))
    teller.gone(2, broken=False)

    assert teller.hear(resumed(2)) == [EndChild(1), LeavePod(2)]


def test_a_broken_chief_waits_for_another_successor_and_then_exits() -> None:
    teller = beside()
    teller.gone(1, broken=True)

    assert teller.hear(abandoned(2)) == [EndChild(2), StayForNext(1)]


def test_a_final_checkpoint_for_an_abandoned_successor_is_not_used() -> None:
    teller = beside()
    teller.hear_all(order(2, previous=1), abandoned(2), spec(3, previous=1))
    teller.prepared(3)

    assert teller.hear(final(1, successor=2)) == []
    assert teller.hear(order(3, previous=1)) == [DrainChild(1, successor=3)]
    assert teller.hear(final(1, path="/c/later", successor=3)) == [
        BeginChild(3, "/c/later", chief=True)
    ]


STALE = [
    [
        final(1, "/c/stale", successor=2),
        abandoned(2),
        spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]),
    ],
    [
        abandoned(2),
        final(1, "/c/stale", successor=2),
        spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]),
    ],
    [
        abandoned(2),
        spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]),
        final(1, "/c/stale", successor=2),
    ],
    [spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]), final(1, "/c/stale", successor=2)],
]


@pytest.mark.parametrize("facts", STALE)
def test_a_new_chief_does_not_begin_from_an_outdated_final_checkpoint(
    facts: list[Any],
) -> None:
    """It gets the newest message of each subject, from two streams in any order."""
    teller = Teller("chief-1")
    teller.hear_all(*facts)
    teller.prepared(3)

    assert teller.hear(order(3, previous=1)) == []
    assert teller.hear(final(1, path="/c/later", successor=3)) == [
        BeginChild(3, "/c/later", chief=True)
    ]


def test_with_restart_a_new_chief_ignores_the_final_checkpoint_of_another_generation() -> None:
    teller, wanted = Teller("chief-1"), spec(3, 1, "restart", ["chief-1", "ps-0", "worker-0"])

    assert teller.hear_all(final(1, "/c/stale", successor=2), wanted) == []
    assert teller.hear(final(1, successor=3)) == [StartChild(wanted, fresh=True)]


def test_a_generation_that_saves_after_its_final_checkpoint_continued() -> None:
    teller = Teller("chief-1")
    teller.hear_all(final(1, "/c/stale"), spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]))
    teller.prepared(3)
    later = msgspec.structs.replace(final(1), final=False, step=11)
    teller.pod, _ = supervise.on_saved(teller.pod, later)

    assert teller.hear(order(3, previous=1)) == []


def test_the_running_generation_saves_for_a_chief_that_reads_ahead() -> None:
    teller = beside("chief-0")
    newest = teller.pod.newest

    assert supervise.on_catch_up(teller.pod, newest) == (SaveChild(newest - 1),)


def test_a_chief_does_not_wait_for_a_generation_that_another_pod_leads() -> None:
    teller = Teller("chief-1")
    teller.hear(spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]))

    assert supervise.on_catch_up(teller.pod, 3) == (ReadAheadChild(3, ""),)


def test_a_chief_that_does_not_train_yet_reads_the_checkpoints_of_the_running_one() -> None:
    wanted = spec(3, 1, pods=["chief-1", "ps-0", "worker-0"])
    saved = msgspec.structs.replace(final(1), final=False)
    chief, server = Teller("chief-1"), Teller("ps-0")
    for teller in (chief, server):
        assert supervise.on_saved(teller.pod, saved) == (teller.pod, ())
        teller.hear(wanted)
    read = (ReadAheadChild(3, saved.path),)

    assert supervise.on_saved(chief.pod, saved)[1] == read
    assert supervise.on_saved(server.pod, saved)[1] == ()
    chief.prepared(3)
    assert supervise.on_saved(chief.pod, saved)[1] == read
    chief.hear_all(order(3, previous=1), final(1, successor=3))
    assert supervise.on_saved(chief.pod, saved)[1] == ()


def test_a_chief_does_not_wait_for_a_checkpoint_that_is_not_saved() -> None:
    chief, server = Teller("chief-1"), Teller("ps-0")
    for teller in (chief, server):
        assert supervise.end_read_ahead(teller.pod) == ()
        teller.hear(spec(3, 1, pods=["chief-1", "ps-0", "worker-0"]))

    assert supervise.end_read_ahead(chief.pod) == (ReadAheadChild(3, ""),)
    assert supervise.end_read_ahead(server.pod) == ()
    chief.prepared(3)
    assert supervise.end_read_ahead(chief.pod) == (), "it reads each checkpoint that follows"


def test_the_final_checkpoint_counts_although_a_newer_generation_was_abandoned() -> None:
    teller = beside("chief-0")
    teller.hear_all(order(2, previous=1), abandoned(3))

    assert teller.hear(final(1, successor=2)) == [BeginChild(2, final(1).path, chief=True)]


def test_a_generation_is_not_continued_if_a_newer_one_trains() -> None:
    teller = beside("ps-0")
    teller.hear_all(order(2, previous=1), final(1, successor=2), resumed(2), spec(3, previous=1))

    assert teller.hear(abandoned(3)) == [EndChild(3)]


@pytest.mark.parametrize("name", ["chief-0", "ps-0"])
def test_with_restart_a_superseded_restart_offers_its_last_checkpoint_again(
    name: str,
) -> None:
    teller, wanted = running(name, handover="restart"), spec(3, previous=1, handover="restart")
    teller.hear_all(spec(2, previous=1, handover="restart"), final(1, successor=2), abandoned(2))
    assert teller.pod.children == {1: "preparing"}

    said = [SayLastIsFinal(1, successor=3)] if name == "chief-0" else []
    assert teller.hear(wanted) == [EndChild(1), *said]
    assert teller.hear(final(1, successor=3)) == [StartChild(wanted, fresh=True)]


# ------------------------------------------------------------ late, repeated, missed


FACTS = [
    spec(1),
    order(1),
    resumed(1),
    spec(2, previous=1),
    order(2, previous=1),
    final(1),
    resumed(2),
]


@pytest.mark.parametrize("name", ["chief-0", "ps-0"])
@pytest.mark.parametrize("at", range(1, len(FACTS) + 1))
def test_a_repeated_fact_changes_nothing(name: str, at: int) -> None:
    teller = Teller(name)
    for fact in FACTS[:at]:
        teller.hear(fact)
        for generation in [g for g, phase in teller.pod.children.items() if phase == "preparing"]:
            teller.prepared(generation)

    assert [teller.hear(fact) for fact in FACTS[:at]] == [[]] * at


def test_a_restarted_pod_needs_only_the_newest_of_each_fact() -> None:
    teller = Teller()

    assert teller.hear_all(final(1), spec(2, previous=1), order(2, previous=1)) == [
        StartChild(spec(2, previous=1), fresh=False)
    ]
    assert teller.prepared(2) == [BeginChild(2, final(1).path, chief=True)]


def test_an_older_spec_is_ignored() -> None:
    teller = beside()

    assert teller.hear(spec(1)) == []


def test_an_abandonment_of_an_unknown_generation_is_ignored() -> None:
    assert Teller().hear(abandoned(5)) == []


# ------------------------------------------------------------ any order


class Watched(Teller):
    """A pod whose actions are all checked for validity."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.alive: dict[int, str] = {}
        self.stood: set[int] = set()
        self.ordered: set[int] = set()

    def told(self, fact: Any) -> None:
        if isinstance(fact, HandOverOrdered):
            self.ordered.add(fact.generation)
        for action in self.hear(fact):
            self.check(action)

    def stands(self, which: int) -> None:
        """Report that a child is prepared, if one is preparing."""
        waiting = sorted(g for g, phase in self.alive.items() if phase == "started")
        if waiting:
            generation = waiting[which % len(waiting)]
            self.alive[generation] = "stands"
            self.stood.add(generation)
            for action in self.prepared(generation):
                self.check(action)

    def breaks(self, which: int) -> None:
        begun = sorted(g for g, phase in self.alive.items() if phase == "begun")
        if begun and self.pod.is_chief(begun[which % len(begun)]):
            generation = begun[which % len(begun)]
            self.alive[generation] = "broken"
            self.gone(generation, broken=True)

    def check(self, action: Action) -> None:
        match action:
            case StartChild(wanted, _):
                assert wanted.of(self.pod.name), "only members start children"
                assert wanted.generation not in self.alive, "two children of one generation"
                self.alive[wanted.generation] = "started"
            case BeginChild(generation, _, chief):
                assert self.alive.get(generation) == "stands", "begun before it stood, or twice"
                assert generation in self.ordered, "begun without an order"
                assert chief == self.pod.is_chief(generation)
                self.alive[generation] = "begun"
            case DrainChild(generation, _):
                assert self.alive.get(generation) == "begun" and self.pod.is_chief(generation)
                self.alive[generation] = "drained"
            case GoOnChild(generation):
                assert self.alive.get(generation) == "drained", (
                    "told to go on though it never stopped"
                )
                self.alive[generation] = "begun"
            case EndChild(generation):
                assert self.alive.pop(generation, None), "ended what is not there"
            case SayLastIsFinal(generation, _):
                assert self.alive.get(generation) in ("broken", None) and self.pod.is_chief(
                    generation
                )
            case StayForNext(generation):
                assert self.alive.get(generation) == "broken"
            case LeavePod(generation):
                assert generation not in self.alive and self.pod.is_member(generation)


GENERATIONS = st.integers(1, 4)
EARLIER = st.one_of(st.none(), st.integers(1, 3))
NAMES = st.sampled_from(["chief-0", "chief-1", "ps-0", "worker-0"])
MEMBERS = st.sampled_from(
    [(), ("chief-0", "ps-0", "worker-0"), ("chief-1", "ps-0"), ("chief-1", "worker-0", "ps-1")]
)


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Draw facts about four generations in any order, with repetitions, and events of children."""
    handover = draw(st.sampled_from(["make-before-break", "restart"]))
    previous = {
        g: draw(st.one_of(st.none(), st.integers(1, g - 1)) if g > 1 else st.none())
        for g in range(1, 5)
    }
    members = {g: draw(MEMBERS) for g in previous}
    facts = [
        fact
        for g in previous
        for fact in (
            spec(g, previous[g], handover, members[g]),
            order(g, previous[g]),
            final(g),
            final(g, path=""),
            resumed(g),
            abandoned(g),
        )
    ]
    told = st.tuples(st.just("told"), st.sampled_from(facts))
    stands = st.tuples(st.just("stands"), st.integers(0, 3))
    breaks = st.tuples(st.just("breaks"), st.integers(0, 3))
    return draw(st.lists(st.one_of(told, told, stands, breaks), max_size=40))


@settings(max_examples=600)
@given(NAMES, happenings())
def test_for_any_order_of_facts_children_get_only_valid_orders(
    name: str, moments: list[tuple[str, Any]]
) -> None:
    watched = Watched(name)
    for kind, what in moments:
        getattr(watched, kind)(what)
    assert set(watched.alive) == set(watched.pod.children)


class Job:
    """All pods of a job under a correct launcher.

    A generation is abandoned, or resumes, before the next begins. Each pod gets the facts in the
    order of their publication, with any delay.
    """

    PODS = ("chief-0", "chief-1", "ps-0", "worker-0")

    def __init__(self, handover: str) -> None:
        self.handover = handover
        self.pods = {name: Watched(name) for name in self.PODS}
        self.said: list[Any] = []
        self.heard = dict.fromkeys(self.PODS, 0)
        self.begun: list[tuple[int, Any]] = []

    def say(self, fact: Any) -> None:
        self.said.append(fact)

    def hears(self, name: str) -> bool:
        """Handle the pod's next fact and what follows from it. Return False if there is none."""
        if self.heard[name] == len(self.said):
            return False
        fact = self.said[self.heard[name]]
        self.heard[name] += 1
        pod = self.pods[name]
        if isinstance(fact, HandOverOrdered):
            pod.ordered.add(fact.generation)
        self._follow(name, pod.hear(fact))
        return True

    def stands(self, name: str) -> bool:
        pod = self.pods[name]
        waiting = [g for g, phase in pod.alive.items() if phase == "started"]
        for generation in waiting:
            pod.alive[generation] = "stands"
            self._follow(name, pod.prepared(generation))
        return bool(waiting)

    def _follow(self, name: str, actions: list[Action]) -> None:
        pod = self.pods[name]
        for action in actions:
            pod.check(action)
            if isinstance(action, DrainChild):
                path = f"/c/{action.generation}/{len(self.said)}"
                self.say(final(action.generation, path, action.successor))
            if isinstance(action, BeginChild) and action.chief:
                self.begun.append((action.generation, action.path))
                self.say(resumed(action.generation))

    def settle(self) -> None:
        while any([self.hears(n) for n in self.PODS] + [self.stands(n) for n in self.PODS]):
            pass

    @property
    def trains(self) -> int | None:
        said = [f.generation for f in self.said if isinstance(f, TrainingResumed)]
        return said[-1] if said else None


@settings(max_examples=200)
@given(st.sampled_from(["make-before-break", "restart"]), st.data())
def test_each_generation_begins_once_and_from_its_own_checkpoint(
    handover: str, data: st.DataObject
) -> None:
    job = Job(handover)
    chiefs = ["chief-0", *(data.draw(st.sampled_from(["chief-0", "chief-1"])) for _ in range(3))]
    job.say(spec(1, None, handover, [chiefs[0], "ps-0", "worker-0"]))
    job.say(order(1))
    job.settle()
    for generation in (2, 3, 4):
        before = job.trains
        job.say(spec(generation, before, handover, [chiefs[generation - 1], "ps-0", "worker-0"]))
        for name in data.draw(st.lists(st.sampled_from(Job.PODS), max_size=10)):
            _ = job.hears(name) or job.stands(name)
        if data.draw(st.booleans()):
            job.say(order(generation, before))
            job.settle()
            assert job.trains == generation, "everybody did what he was told and nothing trains"
        else:
            job.say(abandoned(generation))
            job.settle()
            assert job.trains == before
    alive = {name: dict(pod.alive) for name, pod in job.pods.items() if pod.alive}
    assert all(
        set(children) == {job.trains} and "drained" not in children.values()
        for children in alive.values()
    )
    paths = [path for _, path in job.begun if path is not None]
    assert len(paths) == len(set(paths)), "two generations began from one checkpoint"
