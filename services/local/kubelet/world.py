"""What every pod's life needs of its surroundings, chosen once at start."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.local.kubelet.cgroups import Cgroups
from services.local.objects.bodies import Body, name_of, namespace_of, uid_of
from services.local.store import Store

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


class World(msgspec.Struct, frozen=True, kw_only=True):
    store: Store
    cgroups: Cgroups
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
