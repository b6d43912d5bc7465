"""Where a pod finds its job's checkpoints: the path, and the part of the claim that it mounts.
Pure.

Law: a pod sees the folder of its own job, and read-only the one that it continues from; nothing
else of the claim.
"""

from __future__ import annotations

import posixpath
from typing import Any

from services.launcher.settings import Settings
from shared import checkpoints
from shared.messages import AllocationDecided

CHECKPOINTS = "weir-checkpoints"


def checkpoint_dir(decision: AllocationDecided, settings: Settings) -> str:
    """Return the path or URL of the job's own folder, as its pods see it."""
    return _in_pod(_own_folder(decision), settings)


def continue_from(decision: AllocationDecided, settings: Settings) -> str:
    """Return the path or URL of the finished job's folder that this one continues from; empty if
    there is none.
    """
    earlier = decision.request.checkpoint.continue_from
    return _in_pod(earlier, settings) if earlier else ""


def checkpoint_mounts(decision: AllocationDecided, settings: Settings) -> list[dict[str, Any]]:
    """Return the mounts of a container, at the same paths as if the whole claim were mounted."""
    if not settings.checkpoint_claim:
        return []
    folders = {_own_folder(decision): False}
    if earlier := decision.request.checkpoint.continue_from:
        folders.setdefault(earlier, True)
    return [
        _mount(folder, read_only, settings)
        for folder, read_only in folders.items()
        if "://" not in folder
    ]


def _own_folder(decision: AllocationDecided) -> str:
    return checkpoints.checkpoint_location(
        decision.request, decision.uid, decision.checkpoint_folder
    )


def _in_pod(folder: str, settings: Settings) -> str:
    return folder if "://" in folder else posixpath.join(settings.checkpoint_dir, folder)


def _mount(folder: str, read_only: bool, settings: Settings) -> dict[str, Any]:
    mount = {
        "name": CHECKPOINTS,
        "mountPath": _in_pod(folder, settings),
        "subPath": posixpath.normpath(folder),
    }
    return {**mount, "readOnly": True} if read_only else mount


def checkpoint_volumes(decision: AllocationDecided, settings: Settings) -> list[dict[str, Any]]:
    """Return the claim as a volume of the pod, if anything of it is mounted."""
    if not checkpoint_mounts(decision, settings):
        return []
    return [
        {"name": CHECKPOINTS, "persistentVolumeClaim": {"claimName": settings.checkpoint_claim}}
    ]
