"""What is to be said of a TFJob that is asked for as a job of Weir's: pure.

`wrong`: it cannot be asked for so. `lost`: the training may depend on it, and Weir has not got it.
`moot`: Weir does it in its own way. Each with what to do instead, where there is something to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.cli.tfjob_remainder import Raw, Remark, unread, variable, volume
from services.cli.tfjob_shapes import (
    CONTAINER,
    Container,
    Replica,
    Requirements,
    TFJob,
    container,
    number,
)
from shared.kube.objects import GPU
from shared.text import format_count

TYPES = ("PS", "Worker", "Chief", "Master", "Evaluator")
NEEDED = {
    "epochs": "how often every example is trained on",
    "batch": "how many examples one worker has for one update",
}
CHIEF = "every job has a chief that hands out the work; `resources` of a Chief say how large it is"
IN_IT = "must have Weir's trainer in it (FROM weir-trainer); --image IMAGE takes another, --image '' the cluster's"


def remarks(raw: Raw, job: TFJob, said: Mapping[str, Any]) -> Iterator[Remark]:
    """`said`: what was wished for beside the manifest, or in its annotations."""
    named = {name.lower(): replica for name, replica in job.spec.tf_replica_specs.items()}
    yield from _wrong(job, named, said)
    yield from _changed(named)
    if said["image"] is None:
        yield from _images(job)
    spec = _map(raw.get("spec"))
    yield from unread(spec, {"tfReplicaSpecs", "runPolicy"}, "")
    yield from unread(_map(spec.get("runPolicy")), set(), "")
    for name, replica in _map(spec.get("tfReplicaSpecs")).items():
        if name.lower() != "evaluator":
            yield from _replica(name, _map(replica), job.spec.tf_replica_specs[name])


def _map(value: object) -> Raw:
    return value if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- what cannot be, and what becomes something else


def _wrong(job: TFJob, named: Mapping[str, Replica], said: Mapping[str, Any]) -> Iterator[Remark]:
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
        _count(named, "chief"), _count(named, "master")
    ) > 1:
        yield Remark("wrong", "", "spec.tfReplicaSpecs: a job has one Chief (or Master)")
    for role in ("ps", "worker"):
        if role in named and _count(named, role) < 1:
            yield Remark(
                "wrong",
                "",
                f"spec.tfReplicaSpecs: {role} has {format_count(_count(named, role), 'replica')}",
            )


def _count(named: Mapping[str, Replica], role: str) -> int:
    found = named[role].replicas if role in named else 0
    return 1 if found is None else found


def _changed(named: Mapping[str, Replica]) -> Iterator[Remark]:
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


def _images(job: TFJob) -> Iterator[Remark]:
    """One image for all tasks; the first of a worker, chief or ps is taken."""
    images = [
        c.image for r in job.spec.tf_replica_specs.values() if (c := container(r)) and c.image
    ]
    for image in dict.fromkeys(images):
        yield Remark("moot", "", f"image {image}: {IN_IT}")
    if len(set(images)) > 1:
        yield Remark("lost", "", "images: all tasks of a job have one; --image IMAGE says which")


# ---------------------------------------------------------------- replica by replica


def _replica(name: str, raw: Raw, replica: Replica) -> Iterator[Remark]:
    yield from unread(raw, {"replicas", "template"}, name)
    pod = _map(_map(raw.get("template")).get("spec"))
    yield from unread(pod, {"containers", "volumes", "terminationGracePeriodSeconds"}, name)
    listed = [_map(each) for each in pod.get("containers") or ()]
    if container(replica) is None:
        yield Remark("wrong", name, f"has no container called {CONTAINER}, as a TFJob must")
    for each in listed:
        if each.get("name") == CONTAINER:
            yield from _container(name, each, replica)
        else:
            yield Remark(
                "lost", name, f"container {each.get('name')}: a task has one container, {CONTAINER}"
            )
    yield from _volumes(name, pod, replica)


def _container(name: str, raw: Raw, replica: Replica) -> Iterator[Remark]:
    yield from unread(raw, {"name", "image", "resources", "volumeMounts", "env"}, name)
    for mount in map(_map, raw.get("volumeMounts") or ()):
        yield from unread(mount, {"name", "mountPath"}, name, f"mount {mount.get('mountPath')}, ")
    own = container(replica) or Container()
    for entry in own.env or ():
        yield from variable(entry.name, name)
    yield from _amounts(name, own.resources or Requirements())


def _amounts(name: str, required: Requirements) -> Iterator[Remark]:
    asked, most = required.requests or {}, required.limits or {}
    for resource, quantity in {**asked, **most}.items():
        if resource not in ("cpu", "memory", GPU):
            yield Remark("lost", name, f"resource {resource}: Weir counts cpu, memory and {GPU}")
        elif (
            number(resource, quantity, 1) is None
            or number(resource, asked.get(resource, 0), 1) is None
        ):
            yield Remark("wrong", name, f"resource {resource}: {quantity!r} is no quantity")
    for resource in sorted(asked.keys() & most.keys() & {"cpu", "memory"}):
        if number(resource, asked[resource], 1) != number(resource, most[resource], 1):
            taken = asked[resource] if resource == "cpu" else most[resource]
            yield Remark(
                "moot",
                name,
                f"resource {resource}: requests are limits here; {taken} is taken for both",
            )


def _volumes(name: str, pod: Raw, replica: Replica) -> Iterator[Remark]:
    mounts = (container(replica) or Container()).volume_mounts or ()
    for raw in map(_map, pod.get("volumes") or ()):
        paths = {mount.mount_path for mount in mounts if mount.name == raw.get("name")}
        if len(paths) > 1:
            yield Remark(
                "lost", name, f"volume {raw.get('name')}: is mounted at one place, the first"
            )
        yield from volume(raw, paths, name)
