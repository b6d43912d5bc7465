"""Which control groups does this machine let us have? Tried, not guessed."""

import os
from pathlib import Path

from services.local.kubelet.cgroups import Cgroups
from services.local.kubelet.cgroups_v1 import VersionOne
from services.local.kubelet.cgroups_v2 import VersionTwo
from services.local.kubelet.unlimited import NotPermitted


def own_group(controller: str, text: str) -> str:
    """This process's own group, from the text of /proc/self/cgroup; the empty controller is version
    2.
    """
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def under_own(mount: Path, controller: str, name: str) -> Path:
    """Below our own group, so that what bounds us bounds our pods; at the mount if ours is not
    visible.
    """
    own = mount / own_group(controller, Path("/proc/self/cgroup").read_text()).lstrip("/")
    return (own if own.is_dir() else mount) / name


def find(name: str, period_us: int, mount: Path = Path("/sys/fs/cgroup")) -> Cgroups:
    """The best that this machine lets us have."""
    try:
        if (mount / "cgroup.controllers").exists():
            return version_two(mount, name, period_us)
        if not (mount / "cpu").is_dir():
            return NotPermitted(f"there are no control groups at {mount}")
        cpu, account, memory = (under_own(mount / c, c, name) for c in ("cpu", "cpuacct", "memory"))
        tried = VersionOne(cpu, account, memory, period_us)
        tried.open_node("trial", 1000)
        tried.close_node("trial")
        return tried
    except OSError as error:
        return NotPermitted(str(error))


def version_two(mount: Path, name: str, period_us: int) -> Cgroups:
    """The root may hold processes beside groups; no other group may, so there we stand beside our
    own.
    """
    base = mount if os.access(mount, os.W_OK) else under_own(mount, "", name).parent.parent
    (base / "cgroup.subtree_control").write_text("+cpu +memory")
    tried = VersionTwo(base / name, period_us)
    tried.open_node("trial", 1000)
    tried.close_node("trial")
    return tried
