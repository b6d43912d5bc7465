"""What a trainer's pod may do: as much as Kubernetes' Pod Security standard `restricted` allows,
and less where it can.

A program is strangers' code. Its pod is not root and never becomes it, has no capability, no token
of the API, and a root that it can only read. Beside its volumes and checkpoints it may write into
/tmp, which is empty when the pod begins, goes with it, and is limited; its HOME lies there too,
because libraries keep caches and settings at home.
"""

from __future__ import annotations

from typing import Any

from services.launcher.settings import Settings

Body = dict[str, Any]
FOLDER, VOLUME = "/tmp", "weir-tmp"  # requests cannot name a volume `weir-...`
CONTAINER: Body = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def of_pod(settings: Settings) -> Body:
    """Its security context. Which user it runs as, the image says, unless the settings do."""
    user = settings.run_as_user
    return {
        "runAsNonRoot": True,
        "runAsGroup": settings.run_as_group,  # else a user that the image does not know has the group of root
        "fsGroup": settings.fs_group,
        "seccompProfile": {"type": "RuntimeDefault"},
        **({"runAsUser": user} if user is not None else {}),
    }


def volume(settings: Settings) -> Body:
    return {"name": VOLUME, "emptyDir": {"sizeLimit": f"{round(settings.tmp_gib * 1024)}Mi"}}


def mount() -> Body:
    return {"name": VOLUME, "mountPath": FOLDER}


def home(settings: Settings) -> dict[str, str]:
    return {"HOME": settings.home} if settings.home else {}
