"""A Kubeflow TFJob (kubeflow.org/v1) as a job request: pure, from a manifest to fields and to what
it has beyond them.

    metadata.name, .namespace           job, namespace
    PS, Worker: replicas                ps, workers: start with so many, min 1, max as wished (or as many)
    container `tensorflow`, resources   of the role: cpu as requested, memory and devices as limited
    container `tensorflow`, image       image: it must have Weir's trainer in it
    volumes: claims, folders of nodes   volumes, in every task
    terminationGracePeriodSeconds       grace_s
    annotations weir.dev/...            what no TFJob says: program, epochs, batch, max-ps, max-workers, policy, ...

A TFJob's command is not run: Weir trains a program with `model()`, `dataset()` and so on, so one
has to be given. What else the manifest has is named (`tfjob_remarks.py`); only labels and foreign
annotations are passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from services.cli.tfjob_remainder import Remark
from services.cli.tfjob_remarks import remarks
from services.cli.tfjob_shapes import Container, Replica, Requirements, TFJob, container, number
from services.cli.trouble import WRONG_USE, Trouble
from shared import documents as documents_module
from shared.kube.objects import GIB, GPU
from shared.text import format_count

Fields = dict[str, Any]
GROUP, ANNOTATION = "kubeflow.org/v1", "weir.dev/"
ROLES = {"chief": "chief", "master": "chief", "ps": "ps", "worker": "worker", "evaluator": ""}
"""A replica type in small letters -> our role."""
WISHES = ("epochs", "batch", "max-ps", "max-workers", "image", "policy", "priority")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request's fields but for its program; `program`: as an annotation names it."""

    fields: Fields
    program: str | None
    remarks: tuple[Remark, ...]

    def told(self, kind: str) -> list[str]:
        """What is said alike of several replica types is said once."""
        where: dict[str, list[str]] = {}
        for remark in self.remarks:
            if remark.kind == kind and remark.where not in where.setdefault(remark.text, []):
                where[remark.text].append(remark.where)
        return [
            f"{', '.join(types)}: {text}" if types[0] else text for text, types in where.items()
        ]


def manifest(text: str, name: str) -> tuple[Fields, list[str]]:
    """The one TFJob of a file, and the kinds of what is beside it.

    Raises `Trouble` for a file that has none, or several, or cannot be read.
    """
    try:
        documents = [
            each if isinstance(each, dict) else {}
            for each in documents_module.load_yaml_documents(text)
            if each is not None
        ]
    except yaml.YAMLError as error:
        raise Trouble(f"{name} is not YAML: {' '.join(str(error).split())}", WRONG_USE) from error
    found = [each for each in documents if each.get("kind") == "TFJob"]
    if len(found) != 1:
        kinds = ", ".join(str(each.get("kind", "no object")) for each in documents) or "nothing"
        raise Trouble(
            f"{name} has {format_count(len(found), 'TFJob')}, and one is needed; there is {kinds}",
            WRONG_USE,
        )
    if found[0].get("apiVersion") != GROUP:
        raise Trouble(f"{name} is of {found[0].get('apiVersion')}; only {GROUP} is read", WRONG_USE)
    return found[0], [
        str(each.get("kind", "no object")) for each in documents if each is not found[0]
    ]


def translated(
    raw: Fields, wishes: Mapping[str, int | str | None], beside: Sequence[str] = ()
) -> Asked:
    """`wishes`: by the names of `WISHES`, what was said beside the manifest; None: as its
    annotations say.

    Raises `Trouble` for a manifest that no operator would take either: a field of another type than
    it has.
    """
    try:
        job = msgspec.convert(raw, TFJob)
    except msgspec.ValidationError as error:
        raise Trouble(f"this is no TFJob: {error}", WRONG_USE) from error
    annotated = (job.metadata.annotations or {}).items()
    notes = {
        name.removeprefix(ANNOTATION): _plain(v)
        for name, v in annotated
        if name.startswith(ANNOTATION)
    }
    said = {name: notes.get(name) if wishes.get(name) is None else wishes[name] for name in WISHES}
    roles = {
        role: r
        for name, r in job.spec.tf_replica_specs.items()
        if (role := ROLES.get(name.lower()))
    }
    name = {"job": job.metadata.name, "namespace": job.metadata.namespace}
    return Asked(
        fields={
            k: v
            for k, v in {**name, **_spans(roles, said), **_shared(roles, said)}.items()
            if v is not None
        },
        program=str(notes["program"]) if "program" in notes else None,
        remarks=(*remarks(raw, job, said), *_strange(notes), *map(_foreign, beside)),
    )


# ---------------------------------------------------------------- what is taken


def _strange(notes: Mapping[str, Any]) -> Iterator[Remark]:
    """A slip in one of our annotations."""
    for name in notes:
        if name not in (*WISHES, "program"):
            known = ", ".join((*WISHES, "program"))
            yield Remark(
                "wrong", "", f"annotation {ANNOTATION}{name}: there is not known; there are {known}"
            )


def _foreign(kind: str) -> Remark:
    return Remark("moot", "", f"{kind} beside it: is for `kubectl apply`")


def _plain(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _spans(roles: Mapping[str, Replica], said: Fields) -> Fields:
    """Without ps or workers there is one: Weir cannot train without."""
    counts = {role: _count(roles.get(role)) for role in ("ps", "worker")}
    return {
        "epochs": said["epochs"],
        "batch": said["batch"],
        "ps": {"start": counts["ps"], "min": 1, "max": said["max-ps"] or counts["ps"]},
        "workers": {
            "start": counts["worker"],
            "min": 1,
            "max": said["max-workers"] or counts["worker"],
        },
    }


def _count(replica: Replica | None) -> int:
    return 1 if replica is None or replica.replicas is None else replica.replicas


def _shared(roles: Mapping[str, Replica], said: Fields) -> Fields:
    """What all tasks have in common, and what each role has. A worker's word counts first, if there
    is any.
    """
    first = [roles[role] for role in ("worker", "chief", "ps") if role in roles]
    images = [c.image for r in first if (c := container(r)) and c.image]
    graces = [g for r in first if (g := r.pod.termination_grace_period_seconds) is not None]
    image = images[0] if images and said["image"] is None else said["image"]
    return {
        "image": image or None,
        "grace_s": max(graces, default=None),
        "resources": _resources(roles) or None,
        "volumes": list({v["name"]: v for r in first for v in _volumes(r)}.values()) or None,
        "policy": said["policy"],
        "priority": said["priority"],
    }


def _resources(roles: Mapping[str, Replica]) -> Fields:
    """Of the chief, ps and worker; who has no workers lets the chief train, so its are the
    worker's.
    """
    given = {**roles, "worker": roles.get("worker", roles.get("chief", Replica()))}
    found = {
        role: _amounts((container(replica) or Container()).resources)
        for role, replica in given.items()
    }
    return {role: amounts for role, amounts in found.items() if amounts}


def _amounts(required: Requirements | None) -> Fields:
    """Cpu as requested: more was only lent. Memory as limited: who had so much may need it."""
    asked, most = (required and required.requests) or {}, (required and required.limits) or {}
    found = {
        "cpu": number("cpu", {**most, **asked}.get("cpu"), 1000),
        "memory_gib": number("memory", {**asked, **most}.get("memory"), GIB),
        "gpu": number(GPU, {**asked, **most}.get(GPU), 1),
    }
    return {name: amount for name, amount in found.items() if amount is not None}


def _volumes(replica: Replica) -> Iterator[Fields]:
    mounts = (container(replica) or Container()).volume_mounts or ()
    paths = {mount.name: mount.mount_path for mount in reversed(mounts)}
    for each in replica.pod.volumes or ():
        claim, folder = each.persistent_volume_claim, each.host_path
        source = (
            {"claim": claim.claim_name} if claim else {"host_path": folder.path} if folder else {}
        )
        if source and each.name in paths:
            yield {"name": each.name, "mount_path": paths[each.name], **source}
