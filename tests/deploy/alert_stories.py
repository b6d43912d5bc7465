"""Input of `promtool test rules`: two hours of samples, one a minute, without and with a problem.

Values are as `promtool test rules` writes them: `0+10x120` rises by 10 a minute, 120 times.
"""

from __future__ import annotations

from typing import Any

MINUTES, LOOKED = 120, "100m"
SERVICES = ("monitor", "allocator", "launcher")


def still(value: float) -> str:
    return f"{value:g}+0x{MINUTES}"


def rising(by: float) -> str:
    return f"0+{by:g}x{MINUTES}"


def then(before: float, after: float, at: int = 92) -> str:
    """Return a series that changes its value at a minute."""
    return f"{before:g}+0x{at - 1} {after:g}+0x{MINUTES - at}"


def told(family: str, service: str, number: int = 0, **labels: str) -> str:
    where = {"job": f"weir-{service}", "pod": f"weir-{service}-{number}", **labels}
    return family + "{" + ",".join(f'{name}="{value}"' for name, value in where.items()) + "}"


def spread(family: str, service: str, bound: str) -> dict[str, str]:
    """Return a histogram with ten observations a minute, all of them at most `bound`."""
    bounds = ("0.01", "1.0", "80.0", "+Inf")
    below = bounds.index(bound)
    return {
        told(f"{family}_bucket", service, le=le): rising(10 if at >= below else 0)
        for at, le in enumerate(bounds)
    }


WELL: dict[str, str] = {
    **{told("up", service): still(1) for service in SERVICES},
    **{told("weir_ready", service): still(1) for service in SERVICES},
    **{told("weir_leader", service): still(1) for service in SERVICES},
    **{told("weir_leader", service, 1): still(0) for service in SERVICES},
    **{told("weir_bus_connected", service): still(1) for service in SERVICES},
    **{told("weir_bus_messages_waiting", service): still(0) for service in SERVICES},
    told("weir_dead_letters_total", "allocator"): still(3),
    told("weir_kubernetes_throttled_seconds_total", "launcher"): rising(1),
    **spread("weir_allocator_decision_seconds", "allocator", "0.01"),
    **spread("weir_allocator_reaction_seconds", "allocator", "0.01"),
    **spread("weir_monitor_reaction_seconds", "monitor", "1.0"),
    told("weir_allocator_decisions_total", "allocator", policy="weir", outcome="grow"): rising(0.5),
    told("weir_allocator_failures_total", "allocator", policy="weir"): still(2),
    told("weir_snapshot_failing_seconds", "allocator"): still(0),
    told("weir_allocator_jobs", "allocator", state="running"): still(3),
    told("weir_allocator_longest_wait_seconds", "allocator"): still(0),
    told("weir_allocator_decisions_unanswered", "allocator"): still(0),
    told("weir_allocator_jobs_finished_total", "allocator", outcome="failed"): still(1),
    told("weir_capacity_cpu_cores", "monitor", share="allocatable"): still(16),
    told("weir_capacity_cpu_cores", "monitor", share="free"): still(8),
    told("weir_capacity_nodes", "monitor", state="unready"): still(0),
    told("weir_training_examples_total", "allocator"): rising(60_000),
    told("weir_training_examples_undone_total", "allocator"): still(0),
    **spread("weir_training_pause_seconds", "allocator", "1.0"),
    told("weir_launcher_generations_abandoned_total", "launcher"): still(0),
    told("weir_launcher_pods", "launcher", state="stuck"): still(0),
    told("weir_launcher_tasks_exited_total", "launcher", reason="OOMKilled"): still(0),
    told("weir_training_checkpoints_failed_total", "launcher"): still(0),
}
GONE = {name: "" for name in WELL if "weir-monitor" in name and name.startswith("up{")}
BAD: dict[str, dict[str, str]] = {
    "WeirServiceAbsent": GONE,
    "WeirServiceDown": {told("up", "monitor"): then(1, 0)},
    "WeirServiceNotReady": {told("weir_ready", "launcher"): then(1, 0)},
    "WeirNobodyLeads": {told("weir_leader", "launcher"): then(1, 0, at=97)},
    "WeirLeaderChangesOften": {told("weir_leader", "monitor"): " ".join(["1 0"] * 60)},
    "WeirBusAway": {told("weir_bus_connected", "monitor"): then(1, 0)},
    "WeirBusTakesNothing": {told("weir_bus_messages_waiting", "allocator"): then(0, 7, at=97)},
    "WeirDeadLetters": {told("weir_dead_letters_total", "allocator"): then(3, 4)},
    "WeirKubernetesHoldsBack": {
        told("weir_kubernetes_throttled_seconds_total", "launcher"): rising(90)
    },
    "WeirDecidingSlow": spread("weir_allocator_decision_seconds", "allocator", "80.0"),
    "WeirReactionSlow": spread("weir_monitor_reaction_seconds", "monitor", "80.0"),
    "WeirSnapshotNotStored": {told("weir_snapshot_failing_seconds", "allocator"): then(0, 400)},
    "WeirJobsSetAside": {
        told("weir_allocator_failures_total", "allocator", policy="weir"): then(2, 3)
    },
    "WeirDecidesTooOften": {
        told("weir_allocator_decisions_total", "allocator", policy="weir", outcome="grow"): rising(
            4
        )
    },
    "WeirJobsWaitBesideFreeCores": {
        told("weir_allocator_longest_wait_seconds", "allocator"): f"0+60x{MINUTES}"
    },
    "WeirNodesUnready": {
        told("weir_capacity_nodes", "monitor", state="unready"): then(0, 1, at=85)
    },
    "WeirTrainingStandsStill": {told("weir_training_examples_total", "allocator"): still(60_000)},
    "WeirPausesLong": spread("weir_training_pause_seconds", "allocator", "80.0"),
    "WeirDecisionsUnanswered": {
        told("weir_allocator_decisions_unanswered", "allocator"): then(0, 2)
    },
    "WeirGenerationsAbandoned": {
        told("weir_launcher_generations_abandoned_total", "launcher"): then(0, 5, at=60)
    },
    "WeirPodsStuck": {told("weir_launcher_pods", "launcher", state="stuck"): then(0, 2)},
    "WeirTasksOutOfMemory": {
        told("weir_launcher_tasks_exited_total", "launcher", reason="OOMKilled"): then(0, 1, at=60)
    },
    "WeirCheckpointsFail": {told("weir_training_checkpoints_failed_total", "launcher"): then(0, 1)},
    "WeirMuchIsDoneAgain": {
        told("weir_training_examples_undone_total", "allocator"): rising(6_000)
    },
    "WeirJobsFail": {
        told("weir_allocator_jobs_finished_total", "allocator", outcome="failed"): then(1, 4, at=60)
    },
}
"""By alert: the series that make it fire, and no other alert."""


def stories(rules: str) -> dict[str, Any]:
    """Return the input of `promtool test rules`."""
    told_of = [_story(name, WELL | changed, {name}) for name, changed in BAD.items()]
    return {
        "rule_files": [rules],
        "evaluation_interval": "1m",
        "tests": [_story("all is well", WELL, set()), *told_of],
    }


def _story(name: str, series: dict[str, str], fires: set[str]) -> dict[str, Any]:
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in fires]
    firing = 'count by (alertname) (group by (alertname) (ALERTS{alertstate="firing"}))'
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": one, "values": values} for one, values in series.items() if values
        ],
        "promql_expr_test": [{"expr": firing, "eval_time": LOOKED, "exp_samples": expected}],
    }
