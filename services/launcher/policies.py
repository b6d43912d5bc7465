"""Who may reach a job's pods: a NetworkPolicy a job, made before its first pod, and made again if
it is lost.

TensorFlow's ports ask nobody who he is. So a job's pods may be reached by one another, on every
port, and by nobody else; what they themselves may reach is left open, because their data may be
anywhere. It holds where the cluster's network enforces such policies; one that somebody has widened
is left as it is.
"""

from __future__ import annotations

from typing import Any

from services.launcher import labels
from services.launcher.actions import Action, CreatePolicy
from services.launcher.jobs import Job
from services.launcher.settings import Settings
from services.launcher.view import View

Body = dict[str, Any]


def missing(view: View, job: Job, rules: Settings) -> list[Action]:
    """Unless the cluster has refused it: then it is asked for again with the next generation."""
    service, newest = view.services.get(job.uid), job.newest
    if guarded(view, job, rules) or service is None or service.leaving:
        return []
    if newest is None or (job.uid, newest) in view.refused:
        return []
    return [CreatePolicy(decision=job.generations[newest].decision, owner_uid=service.uid)]


def guarded(view: View, job: Job, rules: Settings) -> bool:
    """Whether pods may be made."""
    return not rules.network_policies or job.uid in view.policies


def manifest(order: CreatePolicy) -> Body:
    decision = order.decision
    own = {
        "podSelector": {"matchLabels": {labels.JOB: decision.job, labels.UID: str(decision.uid)}}
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": decision.job,
            "namespace": decision.namespace,
            "labels": labels.job_labels(decision.job, decision.uid),
            "ownerReferences": [labels.owner(decision.job, order.owner_uid)],
        },
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]},
    }
