"""Random interleavings of events, in which the launcher may be killed at any moment.

The invariants of `world.py` hold; they are checked where actions are performed.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.launcher.facts import PodFact
from services.launcher.reconcile import reconcile
from shared.messages import GenerationPrepared, TaskReady
from tests.launcher.builders import JOB, UID, decided
from tests.launcher.world import World

some = st.integers(min_value=0, max_value=9)


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.generation, self.serial, self.tasks, self.over = 0, 0, list[str](), False

    # ------------------------------------------------------------ the allocator

    @precondition(lambda self: not self.over)
    @rule(leave=st.sets(some, max_size=3), fresh=st.integers(min_value=0, max_value=3), pause=some)
    def decide(self, leave: set[int], fresh: int, pause: int) -> None:
        """Decide: some tasks stay, some go, and some are new.

        No serial is used twice, not even after a decision without tasks.
        """
        self.generation += 1
        kept = [word for n, word in enumerate(self.tasks) if n not in leave]
        new = [f"{'cpw'[min(n, 2)] if not kept else 'w'}{self.serial + n}" for n in range(fresh)]
        self.serial += fresh
        self.tasks = [] if pause == 0 else [*kept, *new]
        self.world.hear(decided(self.generation, " ".join(self.tasks)))

    @precondition(lambda self: self.generation > 5 and not self.over)
    @rule()
    def finish(self) -> None:
        self.world.finish()
        self.over = True

    @initialize()
    def begin(self) -> None:
        self.decide(set(), fresh=4, pause=1)
        self.go_well(set(), far=4, final=False)

    # ------------------------------------------------------------ the cluster

    def pick(self, n: int) -> PodFact | None:
        pods = sorted(self.world.pods.values(), key=lambda pod: pod.uid)
        return pods[n % len(pods)] if pods else None

    @rule(n=some)
    def run(self, n: int) -> None:
        pod = self.pick(n)
        if pod and pod.phase == "Pending" and not pod.terminating:
            self.world.change(pod.name, phase="Running")

    @rule(n=some)
    def ready(self, n: int) -> None:
        pod = self.pick(n)
        if pod and pod.phase == "Running":
            self.world.hear(
                TaskReady(**self.world.about(pod), node=pod.node, host="h", ports=(1, 2))
            )

    @rule()
    def all_ready(self) -> None:
        self.world.run_pods()

    @rule(n=some)
    def fail(self, n: int) -> None:
        pod = self.pick(n)
        if pod and not pod.has_ended:
            self.world.change(pod.name, phase="Failed", exit_code=1, reason="Error")

    @rule(n=some)
    def vanish(self, n: int) -> None:
        pod = self.pick(n)
        if pod:
            self.world.vanish(pod)

    @rule()
    def lose_policy(self) -> None:
        self.world.lose_policy()

    @rule()
    def reap(self) -> None:
        self.world.reap()

    @rule(n=st.integers(min_value=0, max_value=2), ready=st.booleans())
    def node(self, n: int, ready: bool) -> None:
        self.world.node(f"node-{n}", ready)

    @rule(seconds=st.sampled_from([1.0, 20.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    # ------------------------------------------------------------ the trainers

    @rule(n=some, error=st.sampled_from([None, None, None, "bind failed"]))
    def prepare(self, n: int, error: str | None) -> None:
        specs = {
            m.generation: m for m in self.world.said if type(m).__name__ == "ClusterSpecPublished"
        }
        spec, pod = specs.get(max(specs, default=0)), self.pick(n)
        if spec and pod and spec.of(pod.name):
            about = {**self.world.about(pod), "generation": spec.generation}
            self.world.hear(GenerationPrepared(**about, error=error))

    @rule()
    def all_prepare(self) -> None:
        for n in range(len(self.world.pods)):
            self.prepare(n, None)

    @rule(final=st.booleans(), resumes=st.booleans())
    def hand_over(self, final: bool, resumes: bool) -> None:
        for generation, previous in self.world.ordered()[-1:]:
            if final and previous is not None:
                self.world.drain(previous)
            if resumes:
                self.world.resume(generation)

    def resume(self) -> None:
        self.hand_over(final=False, resumes=True)

    @rule(
        leave=st.sets(some, max_size=2),
        far=st.integers(min_value=0, max_value=4),
        final=st.booleans(),
    )
    def go_well(self, leave: set[int], far: int, final: bool) -> None:
        """Take up to four steps of a hand-over: ready, prepared, handed over, resumed.

        Without this rule random steps would seldom get that far.
        """
        if not self.over:
            self.decide(leave, fresh=2, pause=1)
        self.settle()
        for step in (
            self.all_ready,
            self.all_prepare,
            lambda: self.hand_over(final, False),
            self.resume,
        )[:far]:
            step()
            self.settle()

    # ------------------------------------------------------------ the launcher

    @rule()
    def settle(self) -> None:
        self.world.settle()
        assert reconcile(self.world.view, self.world.now, self.world.rules) == []

    @rule(many=st.integers(min_value=1, max_value=2))
    def die_half_way(self, many: int) -> None:
        """Perform some of the actions, then restart from the log and the cluster."""
        for action in reconcile(self.world.view, self.world.now, self.world.rules)[:many]:
            self.world.perform(action)
        told = self.world.view.bus_state
        self.world.restart()
        assert self.world.view.bus_state == told

    @invariant()
    def names_are_unique(self) -> None:
        named = [pod.name for pod in self.world.pods.values()]
        assert len(named) == len(set(named))

    def teardown(self) -> None:
        """Check that nothing is left after the end of the job and of all grace periods."""
        self.world.finish()
        self.world.settle()
        self.world.reap()
        self.world.settle()
        assert not (self.world.pods or self.world.services or self.world.policies), JOB
        assert UID not in self.world.view.bus_state.jobs


Life.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_whatever_happens_in_whatever_order = Life.TestCase
