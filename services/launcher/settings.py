"""Settings of the launcher: the cluster, the pods, and the time limit of each step."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shared.runtime.config import Count, KubeSettings, Positive


class Settings(KubeSettings, frozen=True, kw_only=True):
    """`WEIR_LAUNCHER_<FIELD>`. Every timer is one of these."""

    # The cluster. If `job_namespaces` is set, only those and the nodes are watched.
    kube_rate: Positive = 50.0
    kube_burst: Count = 25
    # Actions at once; fewer than kube_burst, so that watches do not wait for actions.
    kube_parallel: int = 16

    # The file with the key that signs jobs' credentials; empty: the bus requires none.
    signing_key: str = ""
    # Their validity in s: a year, longer than any job; 0: unlimited.
    credentials_s: Annotated[float, Meta(ge=0)] = 31_536_000.0

    # The pod of a trainer.
    image: str = "weir-trainer:latest"  # if the request names none
    trainer_nats_url: str = ""  # URL of the bus for pods; empty: the launcher's
    trainer_nats_ca: str = ""  # text of the bus's CA certificates; empty: the launcher's file
    task_ports: str = "2222,2223"  # "0,0": free ones, for many pods on one machine
    checkpoint_dir: str = "/var/lib/weir/checkpoints"
    checkpoint_claim: str = ""  # a pod mounts the job's folder of it below checkpoint_dir
    fs_group: int = 65532  # lets a pod that is not root write to a claim
    run_as_user: Annotated[int, Meta(ge=1)] | None = None  # absent: the image's, never root
    run_as_group: Annotated[int, Meta(ge=1)] = 65532
    priority_class: str = ""  # its PriorityClass; empty: none
    # The size of /tmp, the only folder it can write to; a pod that writes more is evicted.
    tmp_gib: Annotated[float, Meta(gt=0)] = 8.0
    home: str = "/tmp"  # HOME, because the root is read-only; empty: the image's
    network_policies: bool = True  # one for each job: only its own pods can reach its pods

    # The time limit of each step of a generation, from the message that began it. After it the
    # generation is abandoned.
    unschedulable_s: float = 30.0  # the scheduler finds no node
    # A task has ended: until then a replacement may be decided, which keeps the ready tasks.
    overtake_s: float = 2.0
    # The draining chief has ended: until then the message about its checkpoint may arrive.
    drained_s: float = 5.0
    start_timeout_s: float = 300.0  # decided -> every task ready (images may have to be pulled)
    prepare_timeout_s: float = 180.0  # cluster spec -> every task prepared
    resume_timeout_s: float = 120.0  # hand-over -> training resumed
    # A checkpoint is read within the last two limits. For each GB of parameters and divided tables
    # with their slots they are this much longer. With as many deltas as possible, 3 GB are read.
    restore_s_per_gb: Annotated[float, Meta(ge=0)] = 30.0
    # The upper bound of that extension. The job reports the size, and a wrong one must not disable
    # the limits.
    restore_extension_max_s: Annotated[float, Meta(ge=0)] = 3600.0

    # The time that Kubernetes gives a pod to end: 1.5 times the duration of the job's last changes,
    # at most this, at least the request's `grace_s`. Without a measurement it is this. A pod that
    # is not needed any more ends at once; a pod that the launcher deletes has the request's
    # `grace_s`.
    grace_most_s: Annotated[float, Meta(ge=0)] = 180.0

    # The most seconds of training to repeat after a loss, passed to every pod
    # (WEIR_TRAINER_REDO_S): the bound of the checkpoint interval of jobs that request none.
    redo_s: Annotated[float, Meta(gt=0)] = 60.0

    # The most of a worker's time in which it measures gradient noise, passed to every pod
    # (WEIR_NOISE_SHARE); 0: it does not.
    noise_share: Annotated[float, Meta(ge=0, le=1)] = 0.015

    # The trainer's watchdog, passed to every pod (WEIR_TRAINER_STUCK_...). `stuck_early_s` times
    # `stuck_patience` must be less than the two limits above, so that a program that hangs is
    # reported with its stack before they pass.
    # One call of the program's code; then the job fails.
    stuck_s: Annotated[float, Meta(gt=0)] = 300.0
    stuck_early_s: Annotated[float, Meta(gt=0)] = 75.0  # the same, until a generation trains
    # A step hangs if no update is applied for this many times the limit.
    stuck_patience: Annotated[float, Meta(ge=1)] = 1.5

    # Kubernetes Events on a job's service, a second, of all jobs together (0: none). One job may
    # have `event_burst` at once, and another one every `event_refill_s`. More are dropped, but the
    # end of a job is always written.
    event_rate: Annotated[float, Meta(ge=0)] = 5.0
    event_burst: Count = 20
    event_refill_s: Annotated[float, Meta(gt=0)] = 30.0

    # After this time without Ready (besides Kubernetes' own 40 s) a node has lost its pods.
    node_lost_s: float = 10.0
    # Objects of an unknown job are deleted this time after the start; 0: never.
    orphan_s: float = 300.0
    echo_s: float = 5.0  # the longest wait for another launcher's order to be read
    snapshot_s: float = 30.0  # the interval of snapshots, so that a restart reads less
