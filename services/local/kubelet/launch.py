"""How a container becomes a command: pure, from the pod's body and what the kubelet knows.

The image is recorded; it says no more than which folder of Python packages is used
(`KubeletSettings.images`). `command` and `args` run on this machine; `python` means the Python that
runs this program. The environment is bare: PATH, HOME, LANG, PYTHONPATH, VIRTUAL_ENV, TMPDIR, the
mark, and what the container declares. `$(NAME)` is replaced as Kubernetes does, `$$` is a dollar.

There is no mount namespace, so a path in a pod is a path of this machine: a hostPath volume works
where its mountPath equals its path, and an emptyDir is a folder that goes with the pod, found under
the data folder and not at its mountPath. TMPDIR, which goes with the pod too, stands for an
emptyDir at /tmp; its size has no limit.

Nor has a pod a user of its own: a security context is recorded and not enforced. What a container
may only read in a real cluster, its root, it can write here as far as whoever started all this can.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from services.local.kubelet.status import LOOPBACK
from services.local.objects.bodies import Body, at_path, meta, spec
from shared.kube.objects import whole_units

PYTHONS = ("python", "python3")
REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.-][\w.-]*)\))")
KEYED = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")
NODE_FACTS = {
    "status.podIP": LOOPBACK,
    "status.hostIP": LOOPBACK,
    "status.podIPs": LOOPBACK,
    "status.hostIPs": LOOPBACK,
}

Lookup = Callable[[str, str, str], str | None]  # kind of reference, object, key -> value


class CannotLaunch(Exception):
    """Why a container's command or environment cannot be made; becomes its waiting message."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    command: list[str]
    environment: dict[str, str]
    folder: str


def field_value(pod: Body, path: str) -> str:
    if found := KEYED.match(path):
        return str((meta(pod).get(found[1]) or {}).get(found[2], ""))
    value = NODE_FACTS.get(path) or at_path(pod, path)
    return "" if value is None else str(value)


def resource_value(container: Body, reference: Body) -> str:
    which, _, resource = str(reference.get("resource")).partition(".")
    text = ((container.get("resources") or {}).get(which) or {}).get(resource, "0")
    divisor = whole_units(resource, reference.get("divisor") or "1") or 1
    return str(-(-whole_units(resource, text) // divisor))


def referred(pod: Body, container: Body, source: Body, lookup: Lookup) -> str | None:
    """The value that a `valueFrom` refers to; None for an optional one that is missing."""
    if field := source.get("fieldRef"):
        return field_value(pod, str(field.get("fieldPath")))
    if resource := source.get("resourceFieldRef"):
        return resource_value(container, resource)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if reference := source.get(kind):
            value = lookup(kind, str(reference.get("name")), str(reference.get("key")))
            if value is None and not reference.get("optional"):
                raise CannotLaunch(
                    f"{kind} {reference.get('name')}/{reference.get('key')} not found"
                )
            return value
    raise CannotLaunch(f"unknown valueFrom {sorted(source)}")


def expanded(text: str, known: Mapping[str, str]) -> str:
    """An unknown `$(NAME)` is left as it is."""
    return REFERENCE.sub(lambda m: "$" if m[1] == "$" else known.get(m[2], m[0]), text)


def declared(pod: Body, container: Body, lookup: Lookup) -> dict[str, str]:
    known: dict[str, str] = {}
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        value = (
            referred(pod, container, source, lookup)
            if source
            else expanded(str(entry.get("value") or ""), known)
        )
        if value is not None:
            known[entry["name"]] = value
    return known


def launch_of(
    pod: Body, container: Body, base: Mapping[str, str], python: str, folder: str, lookup: Lookup
) -> Launch:
    """`base`: the bare environment. Raises CannotLaunch."""
    environment = declared(pod, container, lookup)
    words = [
        expanded(word, environment)
        for word in [*(container.get("command") or []), *(container.get("args") or [])]
    ]
    if not container.get("command"):
        raise CannotLaunch(
            "no command: images are not run here, so a container must name its command"
        )
    command = [python, *words[1:]] if words[0] in PYTHONS else words
    return Launch(
        command=command,
        environment={**base, **environment},
        folder=container.get("workingDir") or folder,
    )


def empty_dirs(pod: Body) -> list[str]:
    return [
        str(volume["name"]) for volume in spec(pod).get("volumes") or [] if "emptyDir" in volume
    ]
