"""One container: its volumes, command and environment, and its process from start to end.

The process joins its pod's cgroups before it becomes the command (a shell writes its own process
number, then calls exec). So all of its use is measured. It leads its own session. When it has
ended, its remaining processes are killed, as in a real container.

The image only selects a folder of Python packages (`KubeletSettings.images`). `command` and `args`
run on this machine. `python` is the Python that runs this program. The environment has PATH, HOME,
LANG, PYTHONPATH, VIRTUAL_ENV, TMPDIR, the mark of the pod, and the variables of the container.
`$(NAME)` is replaced as in Kubernetes; `$$` is a dollar sign.

There is no mount namespace: a path in a pod is a path of this machine. A hostPath volume works if
its mountPath equals its path. An emptyDir, a Secret and a ConfigMap are folders below the data
folder, not at their mountPath; they are deleted with the pod. A program finds them by a variable: a
value that is the mountPath of such a volume, or a path below it, names the folder in its place.
Files are written when a container starts, and are not updated afterwards. TMPDIR replaces an
emptyDir at /tmp, without a size limit; /dev/shm is that of the machine; neither is replaced in
variables.

There is no user namespace: a security context is stored and not enforced. A container can write
wherever the user of this program can.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

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

Values = Mapping[str, bytes]
Lookup = Callable[[str, str], Values | None]
"""Return the values of an object, by its kind and name; None: there is no such object."""
SECRET, CONFIG_MAP = "Secret", "ConfigMap"
OF_THE_MACHINE = ("/tmp", "/dev/shm")
MODE = 0o444


class CannotLaunch(Exception):
    """The command, environment or a volume of a container cannot be made. The text is its waiting
    message.
    """


class FileSource(NamedTuple):
    """The object whose values are the files of a volume."""

    kind: str
    name: str
    body: Body


# ---------------------------------------------------------------- volumes


def file_source(volume: Body) -> FileSource | None:
    """Return the Secret or ConfigMap of a volume; None: the volume is of another kind."""
    if "secret" in volume:
        body = volume["secret"] or {}
        return FileSource(SECRET, str(body.get("secretName")), body)
    if "configMap" in volume:
        body = volume["configMap"] or {}
        return FileSource(CONFIG_MAP, str(body.get("name")), body)
    return None


def write_files(pod: Body, folder: Path, lookup: Lookup) -> None:
    """Write the files of the pod's Secrets and ConfigMaps, each volume in a folder of its name.
    Raises `CannotLaunch` if one is missing.
    """
    for volume in spec(pod).get("volumes") or []:
        source = file_source(volume)
        if source is None:
            continue
        values = lookup(source.kind, source.name)
        if values is None and not source.body.get("optional"):
            raise CannotLaunch(
                f'volume {volume["name"]}: {source.kind.lower()} "{source.name}" not found'
            )
        target = folder / volume["name"]
        target.mkdir(parents=True, exist_ok=True)
        for path, value in _files(source, values or {}).items():
            _write_file(target / path, value, source.body.get("defaultMode") or MODE)


def _files(source: FileSource, values: Values) -> Mapping[str, bytes]:
    """Return the files of a volume: all values by key, or the items that it names by their
    paths.
    """
    items = source.body.get("items")
    if not items:
        return values
    files = {}
    for item in items:
        key, path = str(item.get("key")), str(item.get("path"))
        if key not in values:
            raise CannotLaunch(f"{source.kind.lower()} {source.name} has no key {key}")
        if path.startswith("/") or ".." in path.split("/"):
            raise CannotLaunch(f"{path}: the path of a file must stay in its volume")
        files[path] = values[key]
    return files


def _write_file(file: Path, value: bytes, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.touch(0o600)
    file.write_bytes(value)
    file.chmod(mode & 0o777)


def mounted_folders(pod: Body, container: Body, folder: Path) -> dict[str, str]:
    """Return the folders on this machine by the mountPath that stands for them. `folder`: that of
    the pod's volumes.
    """
    here = set()
    for volume in spec(pod).get("volumes") or []:
        if file_source(volume) is not None or "emptyDir" in volume:
            here.add(volume.get("name"))
    folders = {}
    for mount in container.get("volumeMounts") or []:
        path = posixpath.normpath(str(mount.get("mountPath")))
        if mount.get("name") in here and path not in OF_THE_MACHINE:
            folders[path] = str(folder / str(mount["name"]) / str(mount.get("subPath") or ""))
    return folders


def on_this_machine(text: str, folders: Mapping[str, str]) -> str:
    """Return a path in a pod as the path on this machine; any other text as it is."""
    for path, folder in folders.items():
        if text == path or text.startswith(f"{path}/"):
            return folder.rstrip("/") + text[len(path) :]
    return text


# $1: the number of group files that follow; then the command.
# ---------------------------------------------------------------- the process


JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1"; shift; n=$((n-1)); done; exec "$@"'
START_ERROR = 128
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes after SIGKILL: of the first process, and of a shell whose child was killed."""
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
        """Start the process. Return None if it runs, else the exit with the reason."""
        self.started_s = self.context.store.clock()
        program = launch.command[0]
        if shutil.which(program, path=launch.environment.get("PATH")) is None:
            return self.start_error(f'exec: "{program}": executable file not found in $PATH')
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
        command = launch.command
        groups = self.context.cgroups.joining(node_of(self.pod), uid_of(self.pod))
        if groups:
            command = ["/bin/sh", "-c", JOIN, "sh", str(len(groups)), *map(str, groups), *command]
        Path(launch.folder).mkdir(parents=True, exist_ok=True)
        with file.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=launch.folder,
                env={**launch.environment, processes.MARK: self.mark},
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
        """Send SIGTERM to the first process only, as a real kubelet does."""
        if self.process is not None and self.process.returncode is None:
            processes.send_signal(self.process.pid, signal.SIGTERM)

    def remaining_processes(self) -> list[int]:
        """Return the processes with this container's mark; and those in the pod's cgroup, if no
        other container shares it.
        """
        found = set(processes.processes_of_container(self.mark))
        if self.process is not None and self.process.returncode is None:
            found.add(self.process.pid)  # its mark may not be readable
        if len(containers_of(self.pod)) == 1:
            found |= set(self.context.cgroups.processes(node_of(self.pod), uid_of(self.pod)))
        return list(filter(processes.is_running, found))

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

KEY_REFERENCES = {"configMapKeyRef": CONFIG_MAP, "secretKeyRef": SECRET}
ALL_REFERENCES = {"configMapRef": CONFIG_MAP, "secretRef": SECRET}


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
    """Return a request or limit in units of the divisor, rounded up."""
    which, _, resource = str(reference.get("resource")).partition(".")
    amounts = (container.get("resources") or {}).get(which) or {}
    amount = whole_units(resource, amounts.get(resource, "0"))
    divisor = whole_units(resource, reference.get("divisor") or "1") or 1
    return str(-(-amount // divisor))


def referenced_value(pod: Body, container: Body, source: Body, lookup: Lookup) -> str | None:
    """Return the value of a `valueFrom`; None if it is optional and missing. Raises
    `CannotLaunch`.
    """
    if field := source.get("fieldRef"):
        return field_value(pod, str(field.get("fieldPath")))
    if resource := source.get("resourceFieldRef"):
        return resource_value(container, resource)
    for field, kind in KEY_REFERENCES.items():
        if reference := source.get(field):
            name, key = reference.get("name"), reference.get("key")
            value = (lookup(kind, str(name)) or {}).get(str(key))
            if value is None and not reference.get("optional"):
                raise CannotLaunch(f"{field} {name}/{key} not found")
            return None if value is None else value.decode(errors="replace")
    raise CannotLaunch(f"unknown valueFrom {sorted(source)}")


def expand_references(text: str, known: Mapping[str, str]) -> str:
    """Replace each `$(NAME)` that is known, and `$$`."""
    return REFERENCE.sub(lambda m: "$" if m[1] == "$" else known.get(m[2], m[0]), text)


def values_of_references(container: Body, lookup: Lookup) -> dict[str, str]:
    """Return the variables of `envFrom`. Raises `CannotLaunch` if an object is missing."""
    found = {}
    for source in container.get("envFrom") or []:
        for field, kind in ALL_REFERENCES.items():
            reference = source.get(field)
            if not reference:
                continue
            values = lookup(kind, str(reference.get("name")))
            if values is None and not reference.get("optional"):
                raise CannotLaunch(f'{kind.lower()} "{reference.get("name")}" not found')
            for key, value in (values or {}).items():
                found[f"{source.get('prefix') or ''}{key}"] = value.decode(errors="replace")
    return found


def container_environment(
    pod: Body, container: Body, lookup: Lookup, volumes: Path
) -> dict[str, str]:
    """Return the variables of a container: those of `envFrom`, then those of `env`. `volumes`: the
    folder of the pod's volumes.
    """
    folders = mounted_folders(pod, container, volumes)
    known = values_of_references(container, lookup)
    for entry in container.get("env") or []:
        source = entry.get("valueFrom")
        if source:
            value = referenced_value(pod, container, source, lookup)
        else:
            text = expand_references(str(entry.get("value") or ""), known)
            value = on_this_machine(text, folders)
        if value is not None:
            known[entry["name"]] = value
    return known


def build_launch(
    pod: Body,
    container: Body,
    base: Mapping[str, str],
    python: str,
    folder: str,
    lookup: Lookup,
    volumes: Path,
) -> Launch:
    """Return the launch of a container. `base`: the bare environment. `volumes`: the folder of the
    pod's volumes. Raises `CannotLaunch`.
    """
    environment = container_environment(pod, container, lookup, volumes)
    command = []
    for word in [*(container.get("command") or []), *(container.get("args") or [])]:
        command.append(expand_references(word, environment))
    if not container.get("command"):
        raise CannotLaunch(
            "no command: images are not run here, so a container must name its command"
        )
    if command[0] in PYTHONS:
        command[0] = python
    return Launch(
        command=command,
        environment={**base, **environment},
        folder=container.get("workingDir") or folder,
    )


def empty_dirs(pod: Body) -> list[str]:
    volumes = spec(pod).get("volumes") or []
    return [str(volume["name"]) for volume in volumes if "emptyDir" in volume]


ROOT = Path(__file__).resolve().parents[3]
INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")


class KubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    quota_period_us: int = 10_000  # of cpu limits: 10 ms
    lease_s: float = 10.0  # between two renewals of a node's lease
    heartbeat_s: float = 300.0  # between two refreshes of a node's status
    measure_s: float = 1.0  # between two measurements of usage
    restart_first_s: float = 10.0  # first back-off of a container that is restarted ...
    restart_longest_s: float = 300.0  # ... doubles up to this
    retry_s: float = 2.0  # for a container whose environment cannot be made
    shutdown_s: float = 6.0  # grace period of pods when the whole cluster ends
    # By image, the folder with its Python packages. Other images have those of this program.
    images: Mapping[str, str] = {}


class KubeletContext(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    cgroups: CgroupManager
    settings: KubeletSettings
    data: Path
    home: str  # the id of this cluster in the marks of its processes
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

    def volumes_of(self, pod: Body) -> Path:
        """Return the folder of the pod's volumes."""
        return self.pod_folder(pod) / "volumes"


def bare_environment(environ: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: environ[name] for name in INHERITED if name in environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **inherited, "PYTHONPATH": str(ROOT)}
