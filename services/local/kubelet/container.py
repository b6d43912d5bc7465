"""One container: its command and environment, and its process from start to end.

The process joins its pod's cgroups before it becomes the command (a shell writes its own process
number, then calls exec). So all of its use is measured. It leads its own session. When it has
ended, its remaining processes are killed, as in a real container.

The image only selects a folder of Python packages (`KubeletSettings.images`). `command` and `args`
run on this machine. `python` is the Python that runs this program. The environment has PATH, HOME,
LANG, PYTHONPATH, VIRTUAL_ENV, TMPDIR, the mark of the pod, and the variables of the container.
`$(NAME)` is replaced as in Kubernetes; `$$` is a dollar sign.

There is no mount namespace: a path in a pod is a path of this machine. A hostPath volume works if
its mountPath equals its path. An emptyDir is a folder below the data folder, not at its mountPath;
it is deleted with the pod. TMPDIR replaces an emptyDir at /tmp, without a size limit.

There is no user namespace: a security context is stored and not enforced. A container can write
wherever the user of this program can.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from services.local.kubelet import processes
from services.local.kubelet.cgroup_manager import CgroupManager
from services.local.kubelet.pod_status import LOOPBACK, ContainerExit, container_exit
from services.local.objects.bodies import (
    Body,
    at_path,
    containers_of,
    meta,
    name_of,
    namespace_of,
    node_of,
    spec,
    uid_of,
)
from services.local.store import Store
from shared.kube.objects import whole_units

# $1: how many group files follow; then the command.
JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1"; shift; n=$((n-1)); done; exec "$@"'
START_ERROR = 128
KILLED = (
    -signal.SIGKILL,
    128 + signal.SIGKILL,
)  # the first process itself; one it waited for, as it says itself
LOOK_AGAIN_S = 0.01


class ContainerRun:
    def __init__(self, context: KubeletContext, pod: Body, name: str) -> None:
        self.context = context
        self.pod = pod
        self.name = name
        self.mark = processes.container_mark(context.home, uid_of(pod), name)
        self.process: Process | None = None
        self.started_s = context.store.clock()

    async def start(self, launch: Launch) -> ContainerExit | None:
        """None if it runs; otherwise why it does not."""
        self.started_s = self.context.store.clock()
        if shutil.which(launch.command[0], path=launch.environment.get("PATH")) is None:
            return self.start_error(
                f'exec: "{launch.command[0]}": executable file not found in $PATH'
            )
        try:
            self.process = await self.spawn(launch)
        except OSError as error:
            return self.start_error(str(error))
        return None

    def start_error(self, message: str) -> ContainerExit:
        now = self.context.store.clock()
        return ContainerExit(
            code=START_ERROR, started_s=now, ended_s=now, reason="StartError", message=message
        )

    async def spawn(self, launch: Launch) -> Process:
        file = self.context.log_file(self.pod, self.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        groups = [
            str(path) for path in self.context.cgroups.joining(node_of(self.pod), uid_of(self.pod))
        ]
        joined = (
            ["/bin/sh", "-c", JOIN, "sh", str(len(groups)), *groups, *launch.command]
            if groups
            else launch.command
        )
        environment = {**launch.environment, processes.MARK: self.mark}
        Path(launch.folder).mkdir(parents=True, exist_ok=True)
        with file.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *joined,
                cwd=launch.folder,
                env=environment,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                start_new_session=True,
            )

    async def wait(self) -> ContainerExit:
        assert self.process is not None
        before = self.oom_kills()
        code = await self.process.wait()
        out_of_memory = code in KILLED and self.oom_kills() > before
        await self.kill_remaining()
        return container_exit(code, self.started_s, self.context.store.clock(), out_of_memory)

    def oom_kills(self) -> int:
        return self.context.cgroups.oom_kills(node_of(self.pod), uid_of(self.pod))

    def terminate(self) -> None:
        """As a real kubelet: the first process is asked; what it does with its children is its
        affair.
        """
        if self.process is not None and self.process.returncode is None:
            processes.send_signal(self.process.pid, signal.SIGTERM)

    def remaining_processes(self) -> list[int]:
        """What runs in it, by its mark; and by the pod's group, if no other container shares
        that.
        """
        found = set(processes.processes_of_container(self.mark))
        if self.process is not None and self.process.returncode is None:
            found.add(self.process.pid)  # also where its mark cannot be read
        if len(containers_of(self.pod)) == 1:
            found |= set(self.context.cgroups.processes(node_of(self.pod), uid_of(self.pod)))
        return [pid for pid in found if processes.is_running(pid)]

    def kill(self) -> None:
        processes.kill_processes(self.remaining_processes())

    async def kill_remaining(self) -> None:
        while left := self.remaining_processes():
            processes.kill_processes(left)
            await asyncio.sleep(LOOK_AGAIN_S)


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


def referenced_value(pod: Body, container: Body, source: Body, lookup: Lookup) -> str | None:
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


def expand_references(text: str, known: Mapping[str, str]) -> str:
    """An unknown `$(NAME)` is left as it is."""
    return REFERENCE.sub(lambda m: "$" if m[1] == "$" else known.get(m[2], m[0]), text)


def container_environment(pod: Body, container: Body, lookup: Lookup) -> dict[str, str]:
    known: dict[str, str] = {}
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        value = (
            referenced_value(pod, container, source, lookup)
            if source
            else expand_references(str(entry.get("value") or ""), known)
        )
        if value is not None:
            known[entry["name"]] = value
    return known


def build_launch(
    pod: Body, container: Body, base: Mapping[str, str], python: str, folder: str, lookup: Lookup
) -> Launch:
    """`base`: the bare environment. Raises CannotLaunch."""
    environment = container_environment(pod, container, lookup)
    words = [
        expand_references(word, environment)
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


ROOT = Path(__file__).resolve().parents[3]
KEPT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    quota_period_us: int = 10_000  # of cpu limits: 10 ms
    lease_s: float = 10.0  # between two renewals of a node's lease
    heartbeat_s: float = 300.0  # between two refreshes of a node's status
    measure_s: float = 1.0  # between two looks at what is used
    restart_first_s: float = 10.0  # back-off of a container that is restarted ...
    restart_longest_s: float = 300.0  # ... doubles up to this
    retry_s: float = 2.0  # for a container whose environment cannot be made
    shutdown_s: float = 6.0  # what pods are given when the whole cluster ends
    images: Mapping[
        str, str
    ] = {}  # folder with the Python packages of an image; of all others this program's own


class KubeletContext(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    cgroups: CgroupManager
    settings: KubeletSettings
    data: Path
    home: str  # tells our processes from those of other clusters
    base: Mapping[str, str]  # the bare environment
    python: str = sys.executable

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    def base_of(self, image: str) -> dict[str, str]:
        """Return the bare environment of a container of this image."""
        folder = self.settings.images.get(image)
        return {**self.base, "PYTHONPATH": folder} if folder else {**self.base}

    def log_file(self, pod: Body, container: str) -> Path:
        return self.logs / f"{namespace_of(pod)}_{name_of(pod)}_{uid_of(pod)}" / f"{container}.log"

    def pod_folder(self, pod: Body) -> Path:
        return self.data / "pods" / uid_of(pod)


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    known = {name: environ[name] for name in KEPT if name in environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **known, "PYTHONPATH": str(ROOT)}
