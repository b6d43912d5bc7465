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
has to be given. What else the manifest has is named (`tfjob_unsupported.py`); only labels and foreign
annotations are passed over in silence.

The fields of a TFJob that a job request takes, typed as Kubernetes has them; null stands for
absent.

What is to be said of a TFJob that is asked for as a job of Weir's: pure.

`wrong`: it cannot be asked for so. `lost`: the training may depend on it, and Weir has not got it.
`moot`: Weir does it in its own way. Each with what to do instead, where there is something to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from services.cli.tfjob_unsupported import (
    Raw,
    Remark,
    unread_fields,
    variable_remarks,
    volume_remarks,
)
from services.console.trouble import WRONG_USE, Trouble
from shared import documents as documents_module
from shared.kube.objects import GIB, GPU, whole_units
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

    def describe_remarks(self, kind: str) -> list[str]:
        """What is said alike of several replica types is said once."""
        where: dict[str, list[str]] = {}
        for remark in self.remarks:
            if remark.kind == kind and remark.where not in where.setdefault(remark.text, []):
                where[remark.text].append(remark.where)
        return [
            f"{', '.join(types)}: {text}" if types[0] else text for text, types in where.items()
        ]


def read_manifest(text: str, name: str) -> tuple[Fields, list[str]]:
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


def translate_tfjob(
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
        name.removeprefix(ANNOTATION): _annotation_value(v)
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
            for k, v in {**name, **_role_spans(roles, said), **_common_fields(roles, said)}.items()
            if v is not None
        },
        program=str(notes["program"]) if "program" in notes else None,
        remarks=(
            *tfjob_remarks(raw, job, said),
            *_unknown_annotations(notes),
            *map(_other_object, beside),
        ),
    )


# ---------------------------------------------------------------- what is taken


def _unknown_annotations(notes: Mapping[str, Any]) -> Iterator[Remark]:
    """A slip in one of our annotations."""
    for name in notes:
        if name not in (*WISHES, "program"):
            known = ", ".join((*WISHES, "program"))
            yield Remark(
                "wrong", "", f"annotation {ANNOTATION}{name}: there is not known; there are {known}"
            )


def _other_object(kind: str) -> Remark:
    return Remark("moot", "", f"{kind} beside it: is for `kubectl apply`")


def _annotation_value(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _role_spans(roles: Mapping[str, Replica], said: Fields) -> Fields:
    """Without ps or workers there is one: Weir cannot train without."""
    counts = {role: _replica_count(roles.get(role)) for role in ("ps", "worker")}
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


def _replica_count(replica: Replica | None) -> int:
    return 1 if replica is None or replica.replicas is None else replica.replicas


def _common_fields(roles: Mapping[str, Replica], said: Fields) -> Fields:
    """What all tasks have in common, and what each role has. A worker's word counts first, if there
    is any.
    """
    first = [roles[role] for role in ("worker", "chief", "ps") if role in roles]
    images = [c.image for r in first if (c := training_container(r)) and c.image]
    graces = [g for r in first if (g := r.pod.termination_grace_period_seconds) is not None]
    image = images[0] if images and said["image"] is None else said["image"]
    return {
        "image": image or None,
        "grace_s": max(graces, default=None),
        "resources": _role_resources(roles) or None,
        "volumes": list({v["name"]: v for r in first for v in _volume_fields(r)}.values()) or None,
        "policy": said["policy"],
        "priority": said["priority"],
    }


def _role_resources(roles: Mapping[str, Replica]) -> Fields:
    """Of the chief, ps and worker; who has no workers lets the chief train, so its are the
    worker's.
    """
    given = {**roles, "worker": roles.get("worker", roles.get("chief", Replica()))}
    found = {
        role: _resource_amounts((training_container(replica) or Container()).resources)
        for role, replica in given.items()
    }
    return {role: amounts for role, amounts in found.items() if amounts}


def _resource_amounts(required: Requirements | None) -> Fields:
    """Cpu as requested: more was only lent. Memory as limited: who had so much may need it."""
    asked, most = (required and required.requests) or {}, (required and required.limits) or {}
    found = {
        "cpu": count_units("cpu", {**most, **asked}.get("cpu"), 1000),
        "memory_gib": count_units("memory", {**asked, **most}.get("memory"), GIB),
        "gpu": count_units(GPU, {**asked, **most}.get(GPU), 1),
    }
    return {name: amount for name, amount in found.items() if amount is not None}


def _volume_fields(replica: Replica) -> Iterator[Fields]:
    mounts = (training_container(replica) or Container()).volume_mounts or ()
    paths = {mount.name: mount.mount_path for mount in reversed(mounts)}
    for each in replica.pod.volumes or ():
        claim, folder = each.persistent_volume_claim, each.host_path
        source = (
            {"claim": claim.claim_name} if claim else {"host_path": folder.path} if folder else {}
        )
        if source and each.name in paths:
            yield {"name": each.name, "mount_path": paths[each.name], **source}


CONTAINER = "tensorflow"
Amounts = dict[str, str | int | float]


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """A piece of a manifest."""


class Requirements(Shape, frozen=True):
    requests: Amounts | None = None
    limits: Amounts | None = None


class Mount(Shape, frozen=True):
    name: str
    mount_path: str


class Variable(Shape, frozen=True):
    name: str


class Container(Shape, frozen=True):
    name: str | None = None
    image: str | None = None
    resources: Requirements | None = None
    volume_mounts: list[Mount] | None = None
    env: list[Variable] | None = None


class Claim(Shape, frozen=True):
    claim_name: str


class HostPath(Shape, frozen=True):
    path: str


class Volume(Shape, frozen=True):
    name: str
    persistent_volume_claim: Claim | None = None
    host_path: HostPath | None = None


class PodSpec(Shape, frozen=True):
    containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    termination_grace_period_seconds: int | None = None


class Template(Shape, frozen=True):
    spec: PodSpec | None = None


class Replica(Shape, frozen=True):
    replicas: int | None = None
    template: Template | None = None

    @property
    def pod(self) -> PodSpec:
        return (self.template or Template()).spec or PodSpec()


class Spec(Shape, frozen=True):
    tf_replica_specs: dict[str, Replica]


class Meta(Shape, frozen=True):
    name: str | None = None
    namespace: str | None = None
    annotations: dict[str, str] | None = None


class TFJob(Shape, frozen=True):
    metadata: Meta
    spec: Spec


def training_container(replica: Replica) -> Container | None:
    """The one that trains."""
    return next((c for c in replica.pod.containers or () if c.name == CONTAINER), None)


def count_units(resource: str, quantity: str | int | float | None, unit: int) -> float | None:
    """So many `unit`s; None for what is absent, or is no quantity (the remarks say so)."""
    try:
        found = None if quantity is None else whole_units(resource, quantity)
    except ValueError:
        return None
    return None if found is None else found if unit == 1 else found / unit


TYPES = ("PS", "Worker", "Chief", "Master", "Evaluator")
NEEDED = {
    "epochs": "how often every example is trained on",
    "batch": "how many examples one worker has for one update",
}
CHIEF = "every job has a chief that hands out the work; `resources` of a Chief say how large it is"
IN_IT = "must have Weir's trainer in it (FROM weir-trainer); --image IMAGE takes another, --image '' the cluster's"


def tfjob_remarks(raw: Raw, job: TFJob, said: Mapping[str, Any]) -> Iterator[Remark]:
    """`said`: what was wished for beside the manifest, or in its annotations."""
    named = {name.lower(): replica for name, replica in job.spec.tf_replica_specs.items()}
    yield from _invalid_fields(job, named, said)
    yield from _changed_fields(named)
    if said["image"] is None:
        yield from _image_remarks(job)
    spec = _as_mapping(raw.get("spec"))
    yield from unread_fields(spec, {"tfReplicaSpecs", "runPolicy"}, "")
    yield from unread_fields(_as_mapping(spec.get("runPolicy")), set(), "")
    for name, replica in _as_mapping(spec.get("tfReplicaSpecs")).items():
        if name.lower() != "evaluator":
            yield from _replica_remarks(name, _as_mapping(replica), job.spec.tf_replica_specs[name])


def _as_mapping(value: object) -> Raw:
    return value if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- what cannot be, and what becomes something else


def _invalid_fields(
    job: TFJob, named: Mapping[str, Replica], said: Mapping[str, Any]
) -> Iterator[Remark]:
    if not job.metadata.name:
        yield Remark(
            "wrong", "", "metadata.name: a job needs a name of its own (generateName makes none)"
        )
    for what, meaning in NEEDED.items():
        if said[what] is None:
            yield Remark(
                "wrong",
                "",
                f"{what}: no TFJob says {meaning}; give --{what} N, or annotate weir.dev/{what}",
            )
    for name in job.spec.tf_replica_specs:
        if name.lower() not in map(str.lower, TYPES):
            yield Remark("wrong", name, f"is no replica type; there are {', '.join(TYPES)}")
    if not named.keys() & {"chief", "master", "worker"}:
        yield Remark("wrong", "", "spec.tfReplicaSpecs: has no Worker and no Chief")
    if {"chief", "master"} <= named.keys() or max(
        _named_replicas(named, "chief"), _named_replicas(named, "master")
    ) > 1:
        yield Remark("wrong", "", "spec.tfReplicaSpecs: a job has one Chief (or Master)")
    for role in ("ps", "worker"):
        if role in named and _named_replicas(named, role) < 1:
            yield Remark(
                "wrong",
                "",
                f"spec.tfReplicaSpecs: {role} has {format_count(_named_replicas(named, role), 'replica')}",
            )


def _named_replicas(named: Mapping[str, Replica], role: str) -> int:
    found = named[role].replicas if role in named else 0
    return 1 if found is None else found


def _changed_fields(named: Mapping[str, Replica]) -> Iterator[Remark]:
    if "ps" not in named:
        yield Remark("moot", "", "no PS: Weir trains with parameter servers, and begins with one")
    if "worker" not in named:
        yield Remark(
            "moot", "", "no Worker: a chief does not train here, so there is one worker of its size"
        )
    if not named.keys() & {"chief", "master"}:
        yield Remark("moot", "", f"no Chief: {CHIEF}")
    if "evaluator" in named:
        yield Remark(
            "moot",
            "Evaluator",
            "no task of its own: PROGRAM's evaluation() and metrics() are asked at the end",
        )


def _image_remarks(job: TFJob) -> Iterator[Remark]:
    """One image for all tasks; the first of a worker, chief or ps is taken."""
    images = [
        c.image
        for r in job.spec.tf_replica_specs.values()
        if (c := training_container(r)) and c.image
    ]
    for image in dict.fromkeys(images):
        yield Remark("moot", "", f"image {image}: {IN_IT}")
    if len(set(images)) > 1:
        yield Remark("lost", "", "images: all tasks of a job have one; --image IMAGE says which")


# ---------------------------------------------------------------- replica by replica


def _replica_remarks(name: str, raw: Raw, replica: Replica) -> Iterator[Remark]:
    yield from unread_fields(raw, {"replicas", "template"}, name)
    pod = _as_mapping(_as_mapping(raw.get("template")).get("spec"))
    yield from unread_fields(pod, {"containers", "volumes", "terminationGracePeriodSeconds"}, name)
    listed = [_as_mapping(each) for each in pod.get("containers") or ()]
    if training_container(replica) is None:
        yield Remark("wrong", name, f"has no container called {CONTAINER}, as a TFJob must")
    for each in listed:
        if each.get("name") == CONTAINER:
            yield from _container_remarks(name, each, replica)
        else:
            yield Remark(
                "lost", name, f"container {each.get('name')}: a task has one container, {CONTAINER}"
            )
    yield from _volume_remarks(name, pod, replica)


def _container_remarks(name: str, raw: Raw, replica: Replica) -> Iterator[Remark]:
    yield from unread_fields(raw, {"name", "image", "resources", "volumeMounts", "env"}, name)
    for mount in map(_as_mapping, raw.get("volumeMounts") or ()):
        yield from unread_fields(
            mount, {"name", "mountPath"}, name, f"mount {mount.get('mountPath')}, "
        )
    own = training_container(replica) or Container()
    for entry in own.env or ():
        yield from variable_remarks(entry.name, name)
    yield from _resource_remarks(name, own.resources or Requirements())


def _resource_remarks(name: str, required: Requirements) -> Iterator[Remark]:
    asked, most = required.requests or {}, required.limits or {}
    for resource, quantity in {**asked, **most}.items():
        if resource not in ("cpu", "memory", GPU):
            yield Remark("lost", name, f"resource {resource}: Weir counts cpu, memory and {GPU}")
        elif (
            count_units(resource, quantity, 1) is None
            or count_units(resource, asked.get(resource, 0), 1) is None
        ):
            yield Remark("wrong", name, f"resource {resource}: {quantity!r} is no quantity")
    for resource in sorted(asked.keys() & most.keys() & {"cpu", "memory"}):
        if count_units(resource, asked[resource], 1) != count_units(resource, most[resource], 1):
            taken = asked[resource] if resource == "cpu" else most[resource]
            yield Remark(
                "moot",
                name,
                f"resource {resource}: requests are limits here; {taken} is taken for both",
            )


def _volume_remarks(name: str, pod: Raw, replica: Replica) -> Iterator[Remark]:
    mounts = (training_container(replica) or Container()).volume_mounts or ()
    for raw in map(_as_mapping, pod.get("volumes") or ()):
        paths = {mount.mount_path for mount in mounts if mount.name == raw.get("name")}
        if len(paths) > 1:
            yield Remark(
                "lost", name, f"volume {raw.get('name')}: is mounted at one place, the first"
            )
        yield from volume_remarks(raw, paths, name)
