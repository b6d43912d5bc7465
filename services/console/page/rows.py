"""A board's parts as plain rows, for a browser. Pure.

Times are seconds since 1970, amounts of CPU cores, of memory (`*_gib`) GiB, speeds examples a
second. Nothing is computed here that `services/board` has not computed: rows choose and name.
"""

from __future__ import annotations

import msgspec

from services.cli.sentences import sentence
from services.console.board import derived
from services.console.board.nodes import Node, Totals
from services.console.board.story import Decision, Story
from shared.messages import Alternative


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One part; what is empty is left out."""


class NodeRow(Row, frozen=True, kw_only=True):
    """`load`: cores by job; `others`: cores of somebody else's pods; `ours_gib`: what all jobs
    hold.
    """

    name: str
    at_s: float
    cpu: float
    memory_gib: float
    gpu: int = 0
    free: float = 0.0
    free_gib: float = 0.0
    ours_gib: float = 0.0
    others_gib: float = 0.0
    others: float = 0.0
    load: dict[str, float] = {}
    closed: str = ""


class JobRow(Row, frozen=True, kw_only=True):
    """As `weir jobs` has it; besides cores and memory held and used, the last losses, and how long
    it takes still. `pauses`: how many, `paused_s`: all together, and `pause_s`: the last; table and
    timeline show these. `metrics`: what its evaluation said at the end; `loss` is that of
    training.
    """

    key: str
    job: str
    namespace: str
    uid: int
    phase: str
    policy: str = ""
    priority: int = 0
    ps: int = 0
    workers: int = 0
    wanted_ps: int = 0
    wanted_workers: int = 0
    batch: int = 0
    generation: int = 0
    step: int = 0
    epoch: int = 0
    epochs: int = 0
    samples: int = 0
    total: int = 0
    share: float | None = None
    left_s: float | None = None
    speed: float = 0.0
    loss: float | None = None
    losses: list[float] = []
    held: float = 0.0
    used: float = 0.0
    held_gib: float = 0.0
    used_gib: float = 0.0
    pause_s: float | None = None
    pauses: int = 0
    paused_s: float = 0.0
    why: str = ""
    asked_s: float = 0.0
    finished_s: float = 0.0
    metrics: dict[str, float] = {}


class DecisionRow(Row, frozen=True, kw_only=True):
    """`event`: the fact that led to it, as a sentence."""

    at_s: float
    key: str
    uid: int
    revision: int
    generation: int
    ps: int
    workers: int
    batch: int
    cpu: float
    reason: str
    nodes: dict[str, tuple[str, ...]] = {}
    alternatives: tuple[Alternative, ...] = ()
    gain_s: float = 0.0
    cost_s: float = 0.0
    event: str = ""
    abandoned: str = ""


class TotalsRow(Row, frozen=True, kw_only=True):
    nodes: int = 0
    allocatable: float = 0.0
    ours: float = 0.0
    others: float = 0.0
    free: float = 0.0
    closed: float = 0.0
    used: float = 0.0
    allocatable_gib: float = 0.0
    ours_gib: float = 0.0
    others_gib: float = 0.0
    free_gib: float = 0.0
    used_gib: float = 0.0
    held_share: float | None = None
    used_share: float | None = None
    held_gib_share: float | None = None
    used_gib_share: float | None = None


def node_row(node: Node) -> NodeRow:
    return NodeRow(
        name=node.name,
        at_s=node.at_s,
        cpu=node.allocatable.cpu,
        memory_gib=node.allocatable.memory_gib,
        gpu=node.allocatable.gpu,
        free=node.free.cpu,
        free_gib=node.free.memory_gib,
        ours_gib=node.ours.memory_gib,
        others_gib=node.others.memory_gib,
        others=node.others.cpu,
        load={key: held.cpu for key, held in node.load.items()},
        closed=node.closed,
    )


def totals_row(totals: Totals) -> TotalsRow:
    sums = {
        name: getattr(totals, name) for name in TotalsRow.__struct_fields__ if hasattr(totals, name)
    }
    return TotalsRow(
        **sums,
        held_share=derived.utilisation(totals),
        used_share=derived.use(totals),
        held_gib_share=derived.memory_share(totals),
        used_gib_share=derived.memory_use(totals),
    )


def job_row(story: Story) -> JobRow:
    view = story.view
    return JobRow(
        key=story.key,
        job=view.job,
        namespace=view.namespace,
        uid=story.uid,
        phase=view.shown_phase,
        policy=story.request.policy or "",
        priority=story.request.priority,
        ps=view.ps,
        workers=view.workers,
        wanted_ps=view.wanted_ps,
        wanted_workers=view.wanted_workers,
        batch=view.batch,
        generation=view.generation,
        step=view.step,
        epoch=view.epoch,
        epochs=story.request.epochs,
        samples=view.samples,
        total=view.total_samples,
        share=derived.share(view),
        left_s=derived.left_s(view),
        speed=view.samples_per_second,
        loss=view.loss,
        losses=derived.losses(story),
        held=story.held_cpu,
        used=story.using.cpu,
        held_gib=story.holding.memory_gib,
        used_gib=story.using.memory_gib,
        pause_s=derived.last_pause_s(story),
        pauses=len(derived.pauses_s(story)),
        paused_s=story.paused_s,
        why=view.why or view.reason,
        asked_s=story.asked_s,
        finished_s=view.finished_s,
        metrics=view.metrics,
    )


def decision_row(decision: Decision) -> DecisionRow:
    gives, event = decision.gives, decision.event
    return DecisionRow(
        at_s=decision.at_s,
        key=f"{decision.namespace}.{decision.job}",
        uid=decision.uid,
        revision=decision.revision,
        generation=gives.generation,
        ps=gives.ps,
        workers=gives.workers,
        batch=gives.batch,
        cpu=gives.cpu,
        nodes=gives.nodes,
        reason=decision.reason,
        alternatives=decision.alternatives,
        gain_s=decision.gain_s,
        cost_s=decision.cost_s,
        event=f"{event.message.key().replace('.', '/', 1)} {sentence(event.message)}"
        if event
        else "",
        abandoned=decision.abandoned,
    )
