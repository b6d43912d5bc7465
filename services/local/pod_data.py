"""Secrets and ConfigMaps of the cluster on one machine, from files: `[NAMESPACE/]NAME=PATH`.

PATH is a folder (each of its files is a value), a file that ends with `.env` (each line is
`NAME=value`, as a shell would export it, without quotes), or any other file (one value of the
file's name).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.local.objects.bodies import Body
from shared.messages import DATA_KEY, DNS_LABEL, SUBDOMAIN

DEFAULT_NAMESPACE = "default"
LARGEST = 1 << 20
"""Bytes of one object, as in Kubernetes."""
FORM = "[NAMESPACE/]NAME=PATH"


class DataSource(msgspec.Struct, frozen=True, kw_only=True):
    """One Secret or ConfigMap, and the file or folder with its values."""

    kind: str
    namespace: str
    name: str
    path: Path

    @property
    def option(self) -> str:
        return f"{self.namespace}/{self.name}={self.path}"


def parse_source(text: str, kind: str) -> DataSource:
    """Return the object that a text names. Raises `ValueError` with the reason."""
    place, sign, path = text.partition("=")
    namespace, slash, name = place.rpartition("/")
    if not slash:
        namespace = DEFAULT_NAMESPACE
    if not sign or not path:
        raise ValueError(f"{text!r} is not {FORM}")
    if not re.fullmatch(DNS_LABEL, namespace):
        raise ValueError(f"{namespace!r} is not the name of a namespace")
    if not re.fullmatch(SUBDOMAIN, name):
        raise ValueError(f"{name!r} is not the name of an object: small letters, digits, - and .")
    return DataSource(kind=kind, namespace=namespace, name=name, path=Path(path))


def read_values(path: Path) -> dict[str, bytes]:
    """Return the values in a file or folder. Raises `ValueError` with every fault, and `OSError`."""
    if path.is_dir():
        values = {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()}
    elif path.suffix == ".env" or path.name == ".env":
        values = parse_variables(path.read_text("utf-8"), str(path))
    else:
        values = {path.name: path.read_bytes()}
    faults = [
        f"{path}: {key!r} cannot be a key" for key in values if not re.fullmatch(DATA_KEY, key)
    ]
    size = sum(map(len, values.values()))
    if size > LARGEST:
        faults.append(f"{path}: {size:,} bytes are more than {LARGEST:,}")
    if faults:
        raise ValueError("\n".join(faults))
    return values


def parse_variables(text: str, file: str) -> dict[str, bytes]:
    """Return the variables of a file with lines `NAME=value`. Empty lines and lines that begin with
    # are left out.
    """
    values = {}
    faults = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not sign or not name:
            faults.append(f"{file}, line {number}: is not NAME=value")
        elif name in values:
            faults.append(f"{file}, line {number}: {name} is there already")
        values[name] = value.encode()
    if faults:
        raise ValueError("\n".join(faults))
    return values


def data_fields(source: DataSource, values: dict[str, bytes]) -> Body:
    """Return the fields of the object beside its metadata."""
    encoded = {key: base64.b64encode(value).decode() for key, value in values.items()}
    if source.kind == "Secret":
        return {"type": "Opaque", "data": encoded}
    plain = {}
    binary = {}
    for key, value in values.items():
        try:
            plain[key] = value.decode()
        except UnicodeDecodeError:
            binary[key] = encoded[key]
    return {"data": plain, "binaryData": binary} if binary else {"data": plain}


def repeated_objects(sources: tuple[DataSource, ...]) -> Iterator[str]:
    """Yield a fault for each object that is there twice."""
    seen = set()
    for source in sources:
        key = source.kind, source.namespace, source.name
        if key in seen:
            yield f"{source.kind} {source.namespace}/{source.name} is there twice"
        seen.add(key)
