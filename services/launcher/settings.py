"""Settings of the launcher: where the cluster is, what a pod looks like, and how long each step may
take.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shared.runtime.config import Count, KubeSettings, Positive


class Settings(KubeSettings, frozen=True, kw_only=True):
    """`WEIR_LAUNCHER_<FIELD>`. Every timer is one of these."""

    # The cluster. It is looked at in `job_namespaces` alone, where there are any, but for its
    # nodes.
    kube_rate: Positive = 50.0
    kube_burst: Count = 25
    kube_parallel: int = (
        16  # actions under way at once; fewer than kube_burst, so that looking waits for no doing
    )

    signing_key: str = ""  # file with the key for jobs' credentials; empty: the bus asks for none
    credentials_s: Annotated[float, Meta(ge=0)] = (
        31_536_000.0  # they last a year, as no job does; 0: for ever
    )

    # A trainer's pod.
    image: str = "weir-trainer:latest"  # where the request names none
    trainer_nats_url: str = ""  # the bus as a pod sees it; empty: as the launcher does
    trainer_nats_ca: str = (
        ""  # text of the certificates that its must be signed by; empty: of the launcher's file
    )
    task_ports: str = "2222,2223"  # "0,0": free ones, for many pods on one machine
    checkpoint_dir: str = "/var/lib/weir/checkpoints"
    checkpoint_claim: str = (
        ""  # a claim, of which a pod mounts its job's folder below checkpoint_dir
    )
    fs_group: int = 65532  # so that a pod which is not root may write to a claim
    run_as_user: Annotated[int, Meta(ge=1)] | None = (
        None  # absent: as the image says, which must not be root
    )
    run_as_group: Annotated[int, Meta(ge=1)] = 65532
    priority_class: str = ""  # its PriorityClass; empty: none
    tmp_gib: Annotated[float, Meta(gt=0)] = (
        8.0  # of /tmp, where alone it may write; who writes more is evicted
    )
    home: str = "/tmp"  # its root is read-only; empty: as the image says
    network_policies: bool = True  # one a job: its pods are reached by its pods alone

    # How long a generation may take for each step, from the message that began it; then it is
    # abandoned.
    unschedulable_s: float = 30.0  # the scheduler says no
    overtake_s: float = 2.0  # a task has ended: so long its replacement may be decided, which keeps what stands ready
    drained_s: float = (
        5.0  # the chief that is to drain has ended: so long its checkpoint may still be heard of
    )
    start_timeout_s: float = 300.0  # decided -> every task ready (images may have to be pulled)
    prepare_timeout_s: float = 180.0  # cluster spec -> every task prepared
    resume_timeout_s: float = 120.0  # hand-over -> training resumed

    # Kubernetes gives a pod as long to end as its job's last changes took, half as much again, but
    # no more than this; a longer `grace_s` of a request counts as it is. Of a job without a
    # measurement this counts. A pod that is needed no more ends at once; what the launcher itself
    # removes is given the request's `grace_s`.
    grace_most_s: Annotated[float, Meta(ge=0)] = 180.0

    # Seconds of training that are repeated at most after a loss, told to every pod
    # (WEIR_TRAINER_REDO_S): it bounds the time between two checkpoints of jobs whose request does
    # not name that.
    redo_s: Annotated[float, Meta(gt=0)] = 60.0

    # The trainer's watchdog, told to every pod (WEIR_TRAINER_STUCK_...). The second, times the
    # third, must be less than the two limits above, so that a program that hangs is told with its
    # stack before they pass.
    stuck_s: Annotated[float, Meta(gt=0)] = (
        300.0  # one call of the program's code; then the job fails for it
    )
    stuck_early_s: Annotated[float, Meta(gt=0)] = 75.0  # the same, until a generation trains
    stuck_patience: Annotated[float, Meta(ge=1)] = (
        1.5  # times as long no update may be applied: a step hangs
    )

    # Kubernetes Events on a job's service: so many a second of all jobs (0: none are written), and
    # of one job so many at once and another one every `event_refill_s`. More are dropped, but for a
    # job's end.
    event_rate: Annotated[float, Meta(ge=0)] = 5.0
    event_burst: Count = 20
    event_refill_s: Annotated[float, Meta(gt=0)] = 30.0

    node_lost_s: float = (
        10.0  # not Ready this long (on top of Kubernetes' own 40 s): its pods are lost
    )
    orphan_s: float = (
        300.0  # what belongs to no known job is removed so long after our start; 0: never
    )
    echo_s: float = 5.0  # longest wait for another's order to be heard
    snapshot_s: float = 30.0  # what was heard is stored this often, so that a restart reads less
