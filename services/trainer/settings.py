"""Settings of one task: its identity, its place, and its timers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shared.messages import Role
from shared.runtime.config import Common


class Settings(Common, frozen=True, kw_only=True):
    """`WEIR_TRAINER_<FIELD>`; the launcher writes them into the pod. Every timer is one of these."""

    # Who this is.
    job: str
    uid: int  # the job's
    pod: str
    pod_uid: str
    role: Role
    serial: int
    namespace: str = "default"
    node: str = "-"

    # Where it stands, and what it may use.
    host: str = "127.0.0.1"
    ports: str = "2222,2223"  # the pair a generation chooses from; "0,0": free ones
    checkpoint_dir: str = "/checkpoints"
    continue_from: str = (
        ""  # the folder of a finished job, from whose last checkpoint this one begins
    )
    cpu: float = 1.0
    memory_gib: float = 0.0
    prepare_nice: int = 5  # weight of a child that prepares

    # How often it speaks.
    progress_s: float = 1.0
    usage_s: float = 5.0

    # Told to end, it works on until another generation trains; else until `leave_s` before its
    # grace is over. So long before that, or twice as long as the last save took, the chief begins
    # the last save for who has to go. Where the job's last changes took longer than that, it stays
    # longer, up to what Kubernetes gives it (the second).
    grace_s: float = 30.0
    grace_most_s: float = 0.0
    leave_s: float = 1.0
    last_save_s: float = 3.0

    # Seconds of training that are repeated at most after a loss, where the request does not say how
    # often to save. More may be, where saving would take more than a tenth of the time; that is
    # logged (`SavesCostMuch`).
    redo_s: Annotated[float, Meta(gt=0)] = 60.0

    peer_grace_s: float = (
        10.0  # how long a chief that lost a task waits for a new generation before its pod ends
    )

    # How long one call of the program's code may take before the job fails for it. The second,
    # until a generation trains, lies below the launcher's own limits for that (to prepare 180 s, to
    # resume 120 s), so that the program's stack is told before they pass. The third: a step that
    # hangs in TensorFlow is given so many times as long (`worker/lanes.py`), because `dataset` is to be
    # told first where it is that which hangs.
    stuck_s: Annotated[float, Meta(gt=0)] = 300.0
    stuck_early_s: Annotated[float, Meta(gt=0)] = 75.0
    stuck_patience: Annotated[float, Meta(ge=1)] = 1.5
