"""One message of every kind. Builders set only what matters."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.messages import (
    MESSAGES,
    Affinity,
    AllocationDecided,
    Bounds,
    CancelRequested,
    CapacityChanged,
    ChangeRejected,
    ChangeRequested,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClaimPlacement,
    ClaimsChanged,
    ClusterSpecPublished,
    EnvFrom,
    EnvValueFrom,
    EnvVar,
    FieldRequirement,
    ForgetRequested,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRejected,
    JobRequested,
    KeyRef,
    LabelRequirement,
    Message,
    ModelProfile,
    MostResources,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeSelectorTerm,
    NodeTerm,
    ObjectRef,
    OwnPod,
    Phases,
    Program,
    ProgressReported,
    QuotaBound,
    QuotaChanged,
    Resources,
    ResumeRequested,
    ServiceTroubled,
    Span,
    SuspendRequested,
    Taint,
    TaskAddress,
    TaskBounds,
    TaskExited,
    TaskLeaving,
    TaskPlan,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TaskUsage,
    Toleration,
    TrainingResumed,
)

JOB = {"job": "digits", "namespace": "default", "uid": 7, "generation": 2}
TASK = {**JOB, "pod": "digits-ps-3", "pod_uid": "pod-uid", "role": "ps", "serial": 3}


def request(**fields: Any) -> JobRequested:
    chosen: dict[str, Any] = {
        "job": "digits",
        "program": Program(name="digits.py", digest="sha256-" + "0" * 64),
        "epochs": 3,
        "batch": Span(start=32, min=16, max=64),
        "ps": Span(start=1, min=1, max=4),
        "workers": Span(start=1, min=1, max=4),
        **fields,
    }
    return JobRequested(**chosen)


def abandoned(**fields: Any) -> GenerationAbandoned:
    return GenerationAbandoned(**{**JOB, "reason": "unschedulable", **fields})


POD_SETTINGS: dict[str, Any] = {
    "env": (
        EnvVar(name="STAGE", value="train"),
        EnvVar(
            name="KEY", value_from=EnvValueFrom(secret_key_ref=KeyRef(name="bucket", key="key"))
        ),
    ),
    "env_from": (EnvFrom(config_map_ref=ObjectRef(name="sizes"), prefix="S_"),),
    "service_account": "trainer",
    "image_pull_secrets": (ObjectRef(name="registry"),),
    "node_selector": {"pool": "a"},
    "affinity": Affinity(
        node_affinity=NodeAffinity(
            required_during_scheduling_ignored_during_execution=NodeSelector(
                node_selector_terms=(
                    NodeSelectorTerm(
                        match_expressions=(
                            LabelRequirement(key="zone", operator="In", values=("a",)),
                        ),
                        match_fields=(FieldRequirement(operator="NotIn", values=("n9",)),),
                    ),
                )
            )
        )
    ),
    "tolerations": (Toleration(key="team", value="a", effect="NoSchedule"),),
    "priority_class": "high",
    "labels": {"team": "a"},
    "annotations": {"example.com/cost": "7 8"},
    "shm_gib": 0.5,
}


def one_of_each() -> list[Message]:
    """Return every kind, in the order of a job's life, with every field set that is easily lost."""
    address = TaskAddress(role="ps", index=0, pod="digits-ps-3", host="10.0.0.3", port=2222)
    plan = TaskPlan(
        role="ps", index=0, serial=3, node="n1", resources=Resources(cpu=0.5, memory_gib=1.5)
    )
    profile = ModelProfile(parameters=10, bytes=40, variables=2)
    zone = NodeRequirement(key="zone", operator="In", values=("a",))
    own = OwnPod(namespace="default", job="digits", pod="digits-ps-3", resources=Resources(cpu=0.5))
    return [
        request(
            request_id="abc",
            **POD_SETTINGS,
            program=Program(name="train", digest="sha256-" + "1" * 64, entry="jobs/main.py"),
            params={"learning_rate": 0.1, "layers": [1, {"width": None}], "kind": "wide"},
        ),
        CancelRequested(job="digits", request_id="abc"),
        ChangeRequested(job="digits", priority=3, workers=Bounds(min=1, max=8), request_id="abc"),
        SuspendRequested(job="digits", request_id="abc"),
        ResumeRequested(job="digits", request_id="abc"),
        ForgetRequested(job="digits", request_id="abc"),
        JobAccepted(**JOB, request=request(), accepted_s=1.5),
        JobRejected(job="invalid-12", namespace="-", uid=7, reasons=("no name", "no program")),
        JobChanged(
            **JOB,
            answers=9,
            priority=3,
            ps=Span(start=1, min=1, max=2),
            workers=Span(start=2, min=1, max=8),
            suspended=True,
        ),
        ChangeRejected(job="digits", uid=9, reasons=("it is over", "it is unknown")),
        CapacityChanged(
            node="n1.example.org",
            node_uid="node-uid",
            seen="digest",
            allocatable=Resources(cpu=4.0, memory_gib=16.0, gpu=1),
            free=Resources(cpu=1.0),
            taints=(Taint(key="k", value="v"),),
            own=(own,),
            labels={"zone": "a"},
        ),
        QuotaChanged(
            namespace="team-a",
            seen="digest",
            bounds=(QuotaBound(quota="compute", resource="requests.cpu", hard=8.0, used=2.5),),
            task_bounds=(
                TaskBounds(
                    limit_range="sizes", least=Resources(cpu=0.25), most=MostResources(cpu=2.0)
                ),
            ),
        ),
        ClaimsChanged(
            namespace="team-a",
            seen="digest",
            placements=(ClaimPlacement(claims=("data",), terms=(NodeTerm(labels=(zone,)),)),),
        ),
        AllocationDecided(
            **JOB, revision=5, request=request(), tasks=(plan,), batch=32, reason="grow"
        ),
        TaskReady(**TASK, node="n1", host="10.0.0.3", ports=(2222, 2223)),
        TaskStarted(**TASK, node="n1"),
        TaskLeaving(**TASK, node="n1", why="Evicted", leaves_s=1800.5, message="drained"),
        TaskExited(**TASK, node="n1", exit_code=137, reason="OOMKilled", message="too much"),
        ClusterSpecPublished(
            **JOB, revision=5, request=request(), tasks=(address,), batch=32, previous=1
        ),
        GenerationPrepared(**TASK, seconds=1.5, error="no"),
        HandOverOrdered(**JOB, previous=1),
        abandoned(goes_on=1),
        TaskUpdated(**TASK, resources=Resources(cpu=2.0), revision=6),
        CheckpointSaved(
            **JOB,
            step=10,
            samples=320,
            path="/c/gen-2/ckpt-10",
            seconds=0.5,
            drain_s=0.25,
            final=True,
        ),
        CheckpointFailed(
            **JOB,
            step=10,
            path="/c/gen-2/ckpt-10",
            cause="it is full",
            remedy="make room",
            failed_s=9.0,
        ),
        CheckpointSkipped(
            **JOB, path="/c/gen-2/ckpt-10", cause="it is torn", instead="/c/gen-1/ckpt-5"
        ),
        TrainingResumed(
            **JOB,
            step=11,
            samples=352,
            previous=1,
            pause_s=0.5,
            phases=Phases(drain_s=0.25),
            learning_rate=0.1,
        ),
        ProgressReported(
            **JOB,
            step=20,
            epoch=1,
            samples=640,
            total_samples=3000,
            samples_per_second=64.5,
            loss=0.5,
            usage=(TaskUsage(task="ps-3", cpu=0.5, memory_gib=0.25),),
            profile=profile,
        ),
        JobFinished(
            **JOB,
            outcome="succeeded",
            step=94,
            samples=3000,
            counted=3000,
            metrics={"accuracy": 0.75},
        ),
        ServiceTroubled(
            service="launcher",
            what="no room",
            cause="weir-orders is full",
            remedy="make room",
            begun_s=9.5,
            seconds=3.0,
        ),
    ]


def spoken_again(message: Message) -> Message:
    """Return an equal message that is another object, as from another publisher."""
    return type(message)(**{name: getattr(message, name) for name in message.__struct_fields__})


def with_fields(body: bytes, **fields: Any) -> bytes:
    """Return a body with some of its JSON fields replaced."""
    return msgspec.json.encode({**msgspec.json.decode(body), **fields})


assert [type(m) for m in one_of_each()] == list(MESSAGES), "a message is missing here"
