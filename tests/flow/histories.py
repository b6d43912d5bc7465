"""Histories of one job name, as the two streams of the bus may store them.

A history has decisions, hand-overs, abandonments, resumptions and ends. Each stream is totally
ordered. A generation resumes only after its hand-over was ordered (the trainers enforce this), but
the order to abandon it may be stored before or after that. A message may be stored twice, and late.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shared.bus.subjects import FACTS, ORDERS, stream_holding, subject_of
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobAccepted,
    JobFinished,
    JobMessage,
    TaskExited,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)
from tests.launcher.builders import JOB, decided, request

KINDS = (
    "decide",
    "decide",
    "resize",
    "suspend",
    "pods",
    "spec",
    "spec",
    "order",
    "order",
    "order",
    "drain",
    "drain for good",
    "save",
    "resume",
    "resume",
    "resume",
    "abandon",
    "abandon",
    "exit",
    "finish",
    "repeat",
    "repeat",
)


OF_TASKS = ("resize", "pods", "spec", "order", "abandon", "exit")
"""The steps that need tasks. They do nothing in a generation that suspends its job."""


class History:
    """The state of a job, and the messages about it that were stored, by stream.

    `choice` selects one of several generations or messages.
    """

    def __init__(self) -> None:
        self.streams: dict[str, list[JobMessage]] = {ORDERS: [], FACTS: []}
        self.uid = 0
        self.begin()

    def begin(self) -> None:
        """Store the acceptance of a new job of this name, and its first decision."""
        self.uid += 100
        self.generation, self.revision, self.over = 0, 0, False
        self.specs, self.ordered, self.given_up = set[int](), set[int](), set[int]()
        self.suspensions = set[int]()
        self.trains: int | None = None
        self.step = 0
        self.store(JobAccepted(job=JOB, uid=self.uid, request=request(), accepted_s=0.0))
        self.decide(0)

    def store(self, message: JobMessage) -> None:
        self.streams[stream_holding(subject_of(message))].append(message)

    def about(self, generation: int) -> dict[str, Any]:
        return {"job": JOB, "uid": self.uid, "generation": generation}

    def task(self, generation: int) -> dict[str, Any]:
        pod = f"{JOB}-worker-{generation}"
        names = {"pod": pod, "pod_uid": f"{self.uid}-{pod}", "role": "worker", "serial": generation}
        return self.about(generation) | names

    def act(self, kind: str, choice: int) -> None:
        if self.generation in self.suspensions and kind in OF_TASKS:
            return None
        if self.over:
            return self.repeat(choice) if kind == "repeat" else self.begin()
        getattr(self, kind.replace(" ", "_"))(choice)

    # ------------------------------------------------------------ the allocator

    def decide(self, choice: int) -> None:
        self.generation += 1
        self.revision += 1
        self.store(self.decision())

    def resize(self, choice: int) -> None:
        """Store a decision with a new revision, unless the generation was abandoned.

        The next decision after an abandonment starts a new generation.
        """
        if self.generation not in self.given_up:
            self.revision += 1
            self.store(self.decision())

    def suspend(self, choice: int) -> None:
        """Suspend the job if it trains and no newer generation is pending."""
        settled = self.generation == self.trains or self.generation in self.given_up
        if self.trains is None or not settled:
            return
        self.saved(final=True)
        self.generation += 1
        self.suspensions.add(self.generation)
        self.revision += 1
        self.store(decided(self.generation, "", self.revision, uid=self.uid))
        self.trains = None
        self.ordered.clear()  # its pods end, and no generation that was ordered before can resume

    def decision(self) -> AllocationDecided:
        return decided(self.generation, f"c0 p0 w{self.generation}", self.revision, uid=self.uid)

    # ------------------------------------------------------------ the launcher

    def pods(self, choice: int) -> None:
        self.store(TaskStarted(**self.task(self.generation), node="n"))
        self.store(TaskReady(**self.task(self.generation), node="n", host="h", ports=(1, 2)))

    def spec(self, choice: int) -> None:
        if self.generation in self.specs | self.given_up:
            return
        self.specs.add(self.generation)
        about = self.about(self.generation) | {
            "revision": self.revision,
            "request": request(),
            "tasks": (),
        }
        self.store(ClusterSpecPublished(**about, batch=32, previous=self.trains))
        self.store(GenerationPrepared(**self.task(self.generation)))

    def order(self, choice: int) -> None:
        self.spec(choice)
        if self.generation not in self.ordered | self.given_up:
            self.ordered.add(self.generation)
            self.store(HandOverOrdered(**self.about(self.generation), previous=self.trains))

    def abandon(self, choice: int) -> None:
        """Abandon one of the last three generations, even one that trains already."""
        open_ = [
            n
            for n in range(max(1, self.generation - 2), self.generation + 1)
            if n not in self.given_up
        ]
        if open_:
            gone = open_[choice % len(open_)]
            self.given_up.add(gone)
            self.store(
                GenerationAbandoned(**self.about(gone), reason="late", stood=gone in self.specs)
            )

    def exit(self, choice: int) -> None:
        self.store(TaskExited(**self.task(self.generation), node="n", exit_code=1, reason="Error"))

    # ------------------------------------------------------------ the trainers

    def resume(self, choice: int) -> None:
        """Resume an ordered generation newer than the running one, even if it was abandoned."""
        may = [n for n in sorted(self.ordered) if self.trains is None or n > self.trains]
        if may:
            before, self.trains = self.trains, may[choice % len(may)]
            about = self.about(self.trains) | {
                "step": self.step,
                "samples": self.step,
                "previous": before,
            }
            self.store(TrainingResumed(**about, pause_s=1.0))

    def save(self, choice: int) -> None:
        self.saved(final=False)

    def drain(self, choice: int) -> None:
        self.saved(final=True, successor=max(self.ordered, default=0))

    def drain_for_good(self, choice: int) -> None:
        self.saved(final=True)

    def saved(self, **how: Any) -> None:
        if self.trains is not None:
            self.step += 1
            about = self.about(self.trains) | {
                "step": self.step,
                "samples": self.step,
                "path": "/c",
                "seconds": 1.0,
            }
            self.store(CheckpointSaved(**about, **how))

    # ------------------------------------------------------------ the end, and the bus

    def finish(self, choice: int) -> None:
        self.store(JobFinished(**self.about(self.generation), outcome="succeeded"))
        self.over = True

    def repeat(self, choice: int) -> None:
        """Store an earlier message once more."""
        said = [*self.streams[ORDERS], *self.streams[FACTS]]
        self.store(said[choice % len(said)])


steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(min_value=0, max_value=30)), max_size=24
)


@st.composite
def merges(draw: st.DrawFn, history: History) -> list[tuple[str, int]]:
    """Draw an order in which a service may read the streams: (stream, index of the message)."""
    left = {stream: len(messages) for stream, messages in history.streams.items()}
    read = dict.fromkeys(left, 0)
    merged = []
    while open_ := [stream for stream in left if read[stream] < left[stream]]:
        stream = draw(st.sampled_from(open_))
        run = draw(st.integers(min_value=1, max_value=left[stream] - read[stream]))
        merged += [(stream, read[stream] + n) for n in range(run)]
        read[stream] += run
    return merged
