"""The folders of a pod's volumes on this machine, and the values of Secrets and ConfigMaps.

There is no mount namespace, so a volume is a folder below the data folder and not at its mountPath.
A program finds it by a variable: a value that is the mountPath of a container's Secret, ConfigMap
or emptyDir, or a path below it, names the folder in its place. /tmp is TMPDIR, and /dev/shm is that
of the machine; neither is replaced. Files are written when a container starts, and are not updated
afterwards.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from services.local.objects.bodies import Body, spec

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
