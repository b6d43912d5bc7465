"""A cluster and its trainers as plain values: it performs actions and checks invariants.

No two pods have one name; no pod is open to all others; no pod of the running generation is deleted
before its successor has resumed; nothing is created for a finished job; nothing is published twice.
`restarts`: the launcher is killed and rebuilt from the log at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from services.launcher import pods as manifests
from services.launcher import view as views
from services.launcher.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateService,
    DeletePod,
    DeleteService,
    Publish,
    ResizePod,
)
from services.launcher.facts import NodeFact, PodFact, PolicyFact, ServiceFact
from services.launcher.jobs import is_paused
from services.launcher.reconcile import next_check_s, reconcile
from services.launcher.settings import Settings
from services.launcher.steps.task_reports import drop_reported_pods
from services.launcher.view import View
from shared.messages import (
    AllocationDecided,
    CheckpointFailed,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobFinished,
    JobMessage,
    ModelProfile,
    TaskReady,
    TrainingResumed,
)
from tests.launcher.builders import JOB, UID

EPOCH = 1_000.0


class World:
    def __init__(self, restarts: bool = False, **rules: Any) -> None:
        self.rules, self.restarts, self.now = Settings(**rules), restarts, EPOCH
        self.view = View(watching_since_s=EPOCH)
        self.log: list[tuple[float, JobMessage]] = []
        self.said: list[JobMessage] = []
        self.done: list[Action] = []
        self.pods: dict[str, PodFact] = {}  # by uid
        self.services: dict[int, ServiceFact] = {}
        self.policies: dict[int, PolicyFact] = {}
        self.nodes = {f"node-{n}": NodeFact(name=f"node-{n}") for n in range(3)}
        self.born = 0
        self.profile: ModelProfile | None = None  # that a chief reports
        self.show_nodes()

    # ------------------------------------------------------------ the launcher

    def settle(self) -> None:
        """Perform actions until there are none; more than a few rounds would be a loop."""
        for _ in range(12):
            if self.restarts:
                self.restart()
            todo = reconcile(self.view, self.now, self.rules)
            for action in todo:
                self.perform(action)
            for uid in self.view.uids():
                self.view = drop_reported_pods(self.view, uid)
            if not todo:
                return
        raise AssertionError(f"never done: {todo}")

    def restart(self) -> None:
        """Rebuild the view as after kill -9, from the log and lists of the cluster.

        Pending actions are forgotten.
        """
        fresh = View(watching_since_s=self.view.watching_since_s, refused=self.view.refused)
        for at_s, message in self.log:
            fresh = views.fold_message(fresh, message, at_s)
        fresh = views.with_service_list(fresh, self.services.values())
        fresh = views.with_policy_list(fresh, self.policies.values())
        self.view = views.start_watching(
            views.with_pod_list(fresh, self.pods.values()), fresh.watching_since_s
        )
        self.show_nodes()

    def hear(self, message: JobMessage) -> None:
        self.log.append((self.now, message))
        self.view = views.fold_message(self.view, message, self.now)

    def perform(self, action: Action) -> None:
        if not isinstance(action, Publish):
            self.view = views.with_pending_action(self.view, action.key())
        self.done.append(action)
        PERFORM[type(action)](self, action)

    def say(self, action: Publish) -> None:
        assert action.message.id() not in {m.id() for m in self.said}, (
            f"said twice: {action.message}"
        )
        self.said.append(action.message)
        self.hear(action.message)

    # ------------------------------------------------------------ the cluster

    def create_service(self, action: CreateService) -> None:
        self.born += 1
        decision = action.decision
        assert not self.view.bus_state.has_finished(decision.key(), decision.uid), (
            "made for a job that is over"
        )
        fact = ServiceFact(
            namespace="default", name=decision.job, uid=f"s{self.born}", job_uid=decision.uid
        )
        self.services[decision.uid] = fact
        self.view = views.with_service(self.view, fact, deleted=False)

    def create_policy(self, action: CreatePolicy) -> None:
        self.born += 1
        decision = action.decision
        assert not self.view.bus_state.has_finished(decision.key(), decision.uid), (
            "made for a job that is over"
        )
        assert self.services[decision.uid].uid == action.owner_uid, "who owns it is not there"
        fact = PolicyFact(
            namespace="default", name=decision.job, uid=f"p{self.born}", job_uid=decision.uid
        )
        self.policies[decision.uid] = fact
        self.view = views.with_policy(self.view, fact, deleted=False)

    def lose_policy(self, uid: int = UID) -> None:
        """Delete the network policy, as another user could."""
        if uid in self.policies:
            self.view = views.with_policy(self.view, self.policies.pop(uid), deleted=True)

    def create_pod(self, action: CreatePod) -> None:
        self.born += 1
        decision, task = action.decision, action.task
        assert action.name not in {p.name for p in self.pods.values()}, (
            f"two pods are called {action.name}"
        )
        assert not self.view.bus_state.has_finished(decision.key(), decision.uid), (
            "made for a job that is over"
        )
        assert decision.uid in self.policies, f"{action.name} is open to everybody"
        fact = PodFact(
            namespace="default",
            job=decision.job,
            job_uid=decision.uid,
            role=task.role,
            serial=task.serial,
            name=action.name,
            uid=f"u{self.born}",
            generation=decision.generation,
            node=task.node,
            resources=task.resources,
            created_with=task.resources,
            image=manifests.trainer_image(action, self.rules),
        )
        self.show(fact)

    def delete_pod(self, action: DeletePod) -> None:
        pod = self.pods.get(action.uid)
        if pod is None:
            return
        job = self.view.bus_state.jobs.get(pod.job_uid)
        if job is not None and job.running is not None and not is_paused(job):
            assert pod.name not in job.generations[job.running].tasks, f"{pod.name} still trains"
        self.show(replace(pod, terminating=True))

    def delete_service(self, action: DeleteService) -> None:
        for uid, service in list(self.services.items()):
            if service.uid == action.uid:
                del self.services[uid]
                self.view = views.with_service(self.view, service, deleted=True)
                self.lose_policy(uid)

    def resize(self, action: ResizePod) -> None:
        if action.uid in self.pods:
            self.show(replace(self.pods[action.uid], resources=action.task.resources))

    def show(self, pod: PodFact) -> None:
        self.pods[pod.uid] = pod
        self.view = views.with_pod(self.view, pod)

    def show_nodes(self) -> None:
        self.view = views.with_node_list(self.view, self.nodes.values(), self.now)

    def node(self, name: str, ready: bool) -> None:
        self.nodes[name] = NodeFact(name=name, ready=ready, since_s=self.now)
        self.show_nodes()

    def vanish(self, pod: PodFact) -> None:
        del self.pods[pod.uid]
        self.view = views.with_pod(self.view, replace(pod, deleted=True))

    def reap(self) -> None:
        """End all grace periods: remove the pods that were deleted."""
        for pod in [p for p in self.pods.values() if p.terminating]:
            self.vanish(pod)

    def pod(self, name: str) -> PodFact:
        return next(p for p in self.pods.values() if p.name == name)

    def change(self, name: str, **fields: Any) -> None:
        self.show(replace(self.pod(name), **fields))

    # ------------------------------------------------------------ the trainers

    def run_pods(self) -> None:
        for pod in list(self.pods.values()):
            if pod.phase == "Pending" and not pod.terminating and not pod.unschedulable:
                self.show(replace(pod, phase="Running"))
                self.hear(
                    TaskReady(**self.about(pod), node=pod.node, host="10.0.0.1", ports=(2222, 2223))
                )

    def prepare(self, generation: int, error: str | None = None) -> None:
        for address in self.spec(generation).tasks:
            pod = self.pod(address.pod)
            about = {**self.about(pod), "generation": generation}
            profile = self.profile if pod.role == "chief" else None
            self.hear(GenerationPrepared(**about, error=error, profile=profile))

    def fail(self, generation: int, name: str) -> None:
        """Report that a prepared child was killed; its pod lives."""
        about = {**self.about(self.pod(name)), "generation": generation}
        self.hear(GenerationPrepared(**about, error="the child was killed"))
        self.settle()

    def drain(self, generation: int, successor: int | None = None) -> None:
        fields = {
            "step": 9,
            "samples": 9,
            "path": "x",
            "seconds": 0.1,
            "final": True,
            "successor": successor,
        }
        self.hear(CheckpointSaved(job=JOB, uid=UID, generation=generation, **fields))

    def save(self, generation: int, step: int) -> None:
        fields = {"step": step, "samples": step, "path": "x", "seconds": 0.1}
        self.hear(CheckpointSaved(job=JOB, uid=UID, generation=generation, **fields))

    def cannot_save(self, generation: int, successor: int | None) -> None:
        about: dict[str, Any] = {
            "step": 9,
            "path": "/c",
            "cause": "it is full",
            "remedy": "make room",
        }
        self.hear(
            CheckpointFailed(job=JOB, uid=UID, generation=generation, successor=successor, **about)
        )

    def resume(self, generation: int, change_s: float = 0.0) -> None:
        self.hear(
            TrainingResumed(
                job=JOB, uid=UID, generation=generation, step=9, samples=9, change_s=change_s
            )
        )

    def finish(self) -> None:
        self.hear(JobFinished(job=JOB, uid=UID, outcome="succeeded"))

    def about(self, pod: PodFact) -> dict[str, Any]:
        names = {"pod": pod.name, "pod_uid": pod.uid, "role": pod.role, "serial": pod.serial}
        return {"job": pod.job, "uid": pod.job_uid, **names}

    # ------------------------------------------------------------ sequences of steps

    def decide(self, decision: AllocationDecided) -> None:
        self.hear(decision)
        self.settle()

    def stand(self, decision: AllocationDecided) -> None:
        """Decide, and run the pods until all are ready, so that the cluster spec is published."""
        self.decide(decision)
        self.run_pods()
        self.settle()

    def hand_over(self, decision: AllocationDecided) -> None:
        """Take a decision to the order of its hand-over."""
        self.stand(decision)
        self.prepare(decision.generation)
        self.settle()

    def train(self, decision: AllocationDecided, change_s: float = 0.0) -> None:
        """Take a decision to training."""
        self.hand_over(decision)
        self.resume(decision.generation, change_s)
        self.settle()

    def wait(self) -> None:
        """Advance the clock to the job's next timeout."""
        due = next_check_s(self.view, self.now, self.rules, UID)
        assert due is not None, "nothing is waited for"
        self.now = due
        self.settle()

    def all(self, kind: type[JobMessage]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    def last(self, kind: type[JobMessage]) -> Any:
        return self.all(kind)[-1]

    def spec(self, generation: int) -> ClusterSpecPublished:
        return next(m for m in self.all(ClusterSpecPublished) if m.generation == generation)

    def abandoned(self) -> dict[int, str]:
        return {m.generation: m.reason for m in self.all(GenerationAbandoned)}

    def ordered(self) -> list[tuple[int, int | None]]:
        return [(m.generation, m.previous) for m in self.all(HandOverOrdered)]

    def standing(self) -> list[str]:
        return sorted(pod.name for pod in self.pods.values() if not pod.terminating)


PERFORM: dict[type[Action], Callable[[World, Any], None]] = {
    Publish: World.say,
    CreateService: World.create_service,
    CreatePolicy: World.create_policy,
    CreatePod: World.create_pod,
    DeletePod: World.delete_pod,
    DeleteService: World.delete_service,
    ResizePod: World.resize,
}
