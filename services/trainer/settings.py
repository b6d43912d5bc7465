"""Settings of one task: its identity, its place, and its timers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from shared.messages import Role
from shared.runtime.config import Common


class Settings(Common, frozen=True, kw_only=True):
    """`WEIR_TRAINER_<FIELD>`; the launcher writes them into the pod. Every timer is one of
    these.
    """

    UNPREFIXED: ClassVar[frozenset[str]] = frozenset({"noise_share"})

    # Identity.
    job: str
    uid: int  # of the job
    pod: str
    pod_uid: str
    role: Role
    serial: int
    namespace: str = "default"
    node: str = "-"

    # Place and resources.
    host: str = "127.0.0.1"
    ports: str = "2222,2223"  # the pair a generation chooses from; "0,0": free ones
    checkpoint_dir: str = "/checkpoints"
    continue_from: str = ""  # folder of a finished job; this one begins with its last checkpoint
    cpu: float = 1.0
    memory_gib: float = 0.0
    prepare_nice: int = 5  # weight of a child that prepares

    # Intervals of reports.
    progress_s: float = 1.0
    usage_s: float = 5.0

    # A pod that is told to end works until another generation trains, or until `leave_s` before its
    # grace period ends. `last_save_s` before that, or twice the duration of the last save, the
    # chief begins the last save. If the job's last changes took longer than `grace_s`, the pod
    # stays longer, up to `grace_most_s`, the limit of Kubernetes.
    grace_s: float = 30.0
    grace_most_s: float = 0.0
    leave_s: float = 1.0
    last_save_s: float = 3.0

    # Seconds of training that are repeated at most after a loss, if the request does not say how
    # often to save. If saving would take more than a tenth of the time, more may be repeated; that
    # is logged (`SavesCostMuch`).
    redo_s: Annotated[float, Meta(gt=0)] = 60.0

    # The most of a worker's time in which it measures gradient noise (0: it does not).
    # `WEIR_NOISE_SHARE`.
    noise_share: Annotated[float, Meta(ge=0, le=1)] = 0.015

    # Time that a chief that lost a task waits for a new generation before its pod ends.
    peer_grace_s: float = 10.0

    # Limits for one call of the program's code; the job fails after them. `stuck_early_s` holds
    # until a generation trains. It is below the launcher's limits (180 s to prepare, 120 s to
    # resume), so that the program's stack is reported before they pass. A step that hangs in
    # TensorFlow gets `stuck_patience` times as long (`worker/stall_detector.py`), so that a hanging
    # `dataset` is reported first.
    stuck_s: Annotated[float, Meta(gt=0)] = 300.0
    stuck_early_s: Annotated[float, Meta(gt=0)] = 75.0
    stuck_patience: Annotated[float, Meta(ge=1)] = 1.5
