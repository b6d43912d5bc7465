"""What has to be made for a generation: first the service that owns everything, then the trainers'
credentials, where the bus asks for any, then the pods that are missing, once their job is guarded
(`policies.py`).

Law: a name is used by one pod at a time, and by one that has lived never again. A name that an
earlier job of the same name has not given back is waited for.
"""

from __future__ import annotations

from services.launcher.actions import Action, CreatePod, CreateSecret, CreateService
from services.launcher.jobs import Job
from services.launcher.policies import guarded
from services.launcher.settings import Settings
from services.launcher.view import View
from shared.kube import eviction


def creations(view: View, job: Job, number: int, rules: Settings) -> list[Action]:
    generation, service = job.generations[number], view.services.get(job.uid)
    if service is None or service.leaving:
        free = service is None and not view.service_taken(job)
        return [CreateService(decision=generation.decision)] if free else []
    if rules.signing_key and service.uid not in view.provided:
        return [CreateSecret(decision=generation.decision, owner_uid=service.uid)]
    if not guarded(view, job, rules):
        return []
    there = {*view.standing(job.uid), *job.known_pods(), *view.taken(job)}
    most_s = rules.grace_most_s
    grace_s = eviction.grace_period(
        generation.decision.request.grace_s, job.changes_s or (most_s,), most_s
    )
    return [
        CreatePod(
            decision=generation.decision,
            task=task,
            name=name,
            owner_uid=service.uid,
            grace_s=grace_s,
        )
        for name, task in generation.tasks.items()
        if name not in there
    ]
