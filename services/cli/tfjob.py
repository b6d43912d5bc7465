"""Translate a Kubeflow TFJob (kubeflow.org/v1) to a job request. Pure: from a manifest to the
fields of the request and to remarks on the other fields.

    metadata.name, .namespace           job, namespace
    PS, Worker: replicas                ps, workers: start; min is 1, max an option (default: start)
    container `tensorflow`, resources   of the role: cpu of requests, memory and devices of limits
    container `tensorflow`, image       image: must have Weir's trainer in it
    volumes: claims, folders of nodes   volumes, in every task
    terminationGracePeriodSeconds       grace_s
    annotations weir.dev/...            fields that TFJobs lack: program, epochs, batch, policy, ...

A TFJob's command is not run: Weir needs a program with `model()`, `dataset()` and so on. Every
other field has a remark (`tfjob_unsupported.py`), except labels and foreign annotations. Kinds of
remarks:

`wrong`: the request is not possible. `lost`: training may depend on the field, and Weir does not
support it. `moot`: Weir handles it in its own way. A remark names the remedy, if there is one.
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
from shared.kube.objects import GPU, whole_units
from shared.messages import GIB
from shared.text import format_count

Fields = dict[str, Any]
GROUP, ANNOTATION = "kubeflow.org/v1", "weir.dev/"
ROLES = {"chief": "chief", "master": "chief", "ps": "ps", "worker": "worker", "evaluator": ""}
"""The role of each replica type, which is in small letters."""
WISHES = ("epochs", "batch", "max-ps", "max-workers", "image", "policy", "priority")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request's fields without its program. `program`: the path in the annotation."""

    fields: Fields
    program: str | None
    remarks: tuple[Remark, ...]

    def describe_remarks(self, kind: str) -> list[str]:
        """Return the texts of a kind. Remarks that differ only in the replica type are combined."""
        types_by_text: dict[str, list[str]] = {}
        for remark in self.remarks:
            if remark.kind != kind:
                continue
            types = types_by_text.setdefault(remark.text, [])
            if remark.where not in types:
                types.append(remark.where)
        lines = []
        for text, types in types_by_text.items():
            lines.append(f"{', '.join(types)}: {text}" if types[0] else text)
        return lines


def read_manifest(text: str, name: str) -> tuple[Fields, list[str]]:
    """Return the TFJob of a file, and the kinds of the other objects in it.

    Raise `Trouble` for a file without a TFJob, with several, or with invalid YAML.
    """
    documents: list[Fields] = []
    try:
        for each in documents_module.load_yaml_documents(text):
            if each is not None:
                documents.append(each if isinstance(each, dict) else {})
    except yaml.YAMLError as error:
        raise Trouble(f"{name} is not YAML: {' '.join(str(error).split())}", WRONG_USE) from error
    kinds = [str(each.get("kind", "no object")) for each in documents]
    count = kinds.count("TFJob")
    if count != 1:
        raise Trouble(
            f"{name} has {format_count(count, 'TFJob')}, and one is needed; "
            f"there is {', '.join(kinds) or 'nothing'}",
            WRONG_USE,
        )
    job = documents[kinds.index("TFJob")]
    if job.get("apiVersion") != GROUP:
        raise Trouble(
            f"{name} has apiVersion {job.get('apiVersion')}; only {GROUP} is supported", WRONG_USE
        )
    kinds.remove("TFJob")
    return job, kinds


def translate_tfjob(
    raw: Fields, wishes: Mapping[str, int | str | None], beside: Sequence[str] = ()
) -> Asked:
    """Translate a manifest. `wishes`: the values of the options `WISHES`, by name; None means the
    value of the annotation. `beside`: the kinds of the other objects in the file.

    Raise `Trouble` for a field of a wrong type, which no operator would accept either.
    """
    try:
        job = msgspec.convert(raw, TFJob)
    except msgspec.ValidationError as error:
        raise Trouble(f"this is not a TFJob: {error}", WRONG_USE) from error
    notes = {}
    for name, text in (job.metadata.annotations or {}).items():
        if name.startswith(ANNOTATION):
            notes[name.removeprefix(ANNOTATION)] = _annotation_value(text)
    values: Fields = {}
    for name in WISHES:
        values[name] = notes.get(name) if wishes.get(name) is None else wishes[name]
    roles = {}
    for name, replica in job.spec.tf_replica_specs.items():
        role = ROLES.get(name.lower())
        if role:
            roles[role] = replica
    fields: Fields = {"job": job.metadata.name, "namespace": job.metadata.namespace}
    fields |= _role_spans(roles, values) | _common_fields(roles, values)
    remarks = [*tfjob_remarks(raw, job, values), *_unknown_annotations(notes)]
    remarks += map(_other_object, beside)
    return Asked(
        fields={name: value for name, value in fields.items() if value is not None},
        program=str(notes["program"]) if "program" in notes else None,
        remarks=tuple(remarks),
    )


# ---------------------------------------------------------------- what is translated


def _unknown_annotations(notes: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield a remark on each annotation of Weir's with an unknown name."""
    known = (*WISHES, "program")
    for name in notes:
        if name not in known:
            text = f"annotation {ANNOTATION}{name}: is not known; use {', '.join(known)}"
            yield Remark("wrong", "", text)


def _other_object(kind: str) -> Remark:
    return Remark("moot", "", f"{kind} in the same file: is not applied; use `kubectl apply`")


def _annotation_value(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _role_spans(roles: Mapping[str, Replica], said: Fields) -> Fields:
    """Return the sizes. Without ps or workers there is one, because Weir cannot train without."""
    ps = _replica_count(roles.get("ps"))
    workers = _replica_count(roles.get("worker"))
    return {
        "epochs": said["epochs"],
        "batch": said["batch"],
        "ps": {"start": ps, "min": 1, "max": said["max-ps"] or ps},
        "workers": {"start": workers, "min": 1, "max": said["max-workers"] or workers},
    }


def _replica_count(replica: Replica | None) -> int:
    return 1 if replica is None or replica.replicas is None else replica.replicas


def _common_fields(roles: Mapping[str, Replica], said: Fields) -> Fields:
    """Return the fields common to all tasks, and the resources of each role. If replicas differ,
    the worker's image counts, then the chief's.
    """
    replicas = [roles[role] for role in ("worker", "chief", "ps") if role in roles]
    images, graces, volumes = [], [], {}
    for replica in replicas:
        found = training_container(replica)
        if found and found.image:
            images.append(found.image)
        if replica.pod.termination_grace_period_seconds is not None:
            graces.append(replica.pod.termination_grace_period_seconds)
        for volume in _volume_fields(replica):
            volumes[volume["name"]] = volume
    image = images[0] if images and said["image"] is None else said["image"]
    return {
        "image": image or None,
        "grace_s": max(graces, default=None),
        "resources": _role_resources(roles) or None,
        "volumes": list(volumes.values()) or None,
        "policy": said["policy"],
        "priority": said["priority"],
    }


def _role_resources(roles: Mapping[str, Replica]) -> Fields:
    """Return the resources of the chief, ps and worker. In a TFJob without workers the chief
    trains, so the worker gets the chief's resources.
    """
    given = {**roles, "worker": roles.get("worker", roles.get("chief", Replica()))}
    found = {}
    for role, replica in given.items():
        amounts = _resource_amounts((training_container(replica) or Container()).resources)
        if amounts:
            found[role] = amounts
    return found


def _resource_amounts(required: Requirements | None) -> Fields:
    """Return the amounts: cpu of the requests, because more is not guaranteed; memory of the
    limits, because a task may need all of it.
    """
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
        source = {}
        if claim:
            source = {"claim": claim.claim_name}
        elif folder:
            source = {"host_path": folder.path}
        if source and each.name in paths:
            yield {"name": each.name, "mount_path": paths[each.name], **source}


CONTAINER = "tensorflow"
Amounts = dict[str, str | int | float]


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a manifest, with the types of Kubernetes. Null means absent."""


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
    """Return the container that trains; None if there is none."""
    for each in replica.pod.containers or ():
        if each.name == CONTAINER:
            return each
    return None


def count_units(resource: str, quantity: str | int | float | None, unit: int) -> float | None:
    """Return the quantity in `unit`s; None if it is absent or invalid (see the remarks)."""
    if quantity is None:
        return None
    try:
        found = whole_units(resource, quantity)
    except ValueError:
        return None
    return found if unit == 1 else found / unit


TYPES = ("PS", "Worker", "Chief", "Master", "Evaluator")
NEEDED = {
    "epochs": "the number of passes over all examples",
    "batch": "the examples of one update",
}
CHIEF = "every job has a chief, which distributes the work; add a Chief to set its resources"
IN_IT = (
    "must have Weir's trainer in it (FROM weir-trainer); "
    "--image IMAGE sets another, --image '' the cluster's"
)


def tfjob_remarks(raw: Raw, job: TFJob, said: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield all remarks on a manifest. `said`: the values of the options or annotations."""
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


# ---------------------------------------------------------------- what is not supported or handled
# in another way


def _invalid_fields(
    job: TFJob, named: Mapping[str, Replica], said: Mapping[str, Any]
) -> Iterator[Remark]:
    if not job.metadata.name:
        yield Remark("wrong", "", "metadata.name: is missing (generateName is not supported)")
    for name, meaning in NEEDED.items():
        if said[name] is None:
            text = f"{name}: no TFJob has {meaning}; give --{name} N, or annotate weir.dev/{name}"
            yield Remark("wrong", "", text)
    for name in job.spec.tf_replica_specs:
        if name.lower() not in map(str.lower, TYPES):
            yield Remark("wrong", name, f"is not a replica type; use {', '.join(TYPES)}")
    if not named.keys() & {"chief", "master", "worker"}:
        yield Remark("wrong", "", "spec.tfReplicaSpecs: has no Worker and no Chief")
    chiefs = [_replica_count(named[role]) for role in ("chief", "master") if role in named]
    if len(chiefs) > 1 or max(chiefs, default=0) > 1:
        yield Remark("wrong", "", "spec.tfReplicaSpecs: a job has one Chief (or Master)")
    for role in ("ps", "worker"):
        if role in named and _replica_count(named[role]) < 1:
            count = format_count(_replica_count(named[role]), "replica")
            yield Remark("wrong", "", f"spec.tfReplicaSpecs: {role} has {count}")


def _changed_fields(named: Mapping[str, Replica]) -> Iterator[Remark]:
    if "ps" not in named:
        yield Remark("moot", "", "no PS: Weir trains with parameter servers, and starts with one")
    if "worker" not in named:
        yield Remark(
            "moot", "", "no Worker: a chief does not train here, so one worker of its size is added"
        )
    if not named.keys() & {"chief", "master"}:
        yield Remark("moot", "", f"no Chief: {CHIEF}")
    if "evaluator" in named:
        yield Remark(
            "moot",
            "Evaluator",
            "no separate task: PROGRAM's evaluation() and metrics() are called at the end",
        )


def _image_remarks(job: TFJob) -> Iterator[Remark]:
    """Yield a remark on each image. All tasks get one, the first of a worker, chief or ps."""
    images = []
    for replica in job.spec.tf_replica_specs.values():
        found = training_container(replica)
        if found and found.image:
            images.append(found.image)
    for image in dict.fromkeys(images):
        yield Remark("moot", "", f"image {image}: {IN_IT}")
    if len(set(images)) > 1:
        yield Remark(
            "lost", "", "images: all tasks of a job use the same image; give --image IMAGE"
        )


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
            yield Remark("wrong", name, f"resource {resource}: {quantity!r} is not a quantity")
    for resource in sorted(asked.keys() & most.keys() & {"cpu", "memory"}):
        if count_units(resource, asked[resource], 1) != count_units(resource, most[resource], 1):
            taken = asked[resource] if resource == "cpu" else most[resource]
            yield Remark(
                "moot",
                name,
                f"resource {resource}: Weir uses one value as request and limit: {taken}",
            )


def _volume_remarks(name: str, pod: Raw, replica: Replica) -> Iterator[Remark]:
    mounts = (training_container(replica) or Container()).volume_mounts or ()
    for raw in map(_as_mapping, pod.get("volumes") or ()):
        paths = {mount.mount_path for mount in mounts if mount.name == raw.get("name")}
        if len(paths) > 1:
            yield Remark(
                "lost", name, f"volume {raw.get('name')}: is mounted only at the first of its paths"
            )
        yield from volume_remarks(raw, paths, name)
