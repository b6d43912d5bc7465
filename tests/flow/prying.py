"""A hostile program: it searches for credentials and publishes as another job.

`test_hostile.py` appends it to a training program. It searches wherever its own user may read: its
environment, that of every process of the cluster, open files, the memory of its supervisor, and
files in its folders. It writes its findings to a file beside `REPORT`, with its pid in the name.
"""

import asyncio
import base64
import json
import os
from pathlib import Path

REPORT = "report"
TOKEN = base64.b64encode(
    b'{"typ":"JWT","alg":"ed25'
)  # part of every NATS credential; this file does not contain the encoded form
LARGEST = 1 << 20


def holds_secret(path):
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST)
    except OSError:
        return False
    return TOKEN in text


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes():
    """Return the pids of our cluster's processes; other tests may run on this machine."""
    home = os.environ["WEIR_LOCAL_POD"].split("/")[0].encode()
    return [
        name
        for name in os.listdir("/proc")
        if name.isdigit() and home in text_of(f"/proc/{name}/environ")
    ]


def text_of(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def in_environments():
    return [
        pid
        for pid in processes()
        if holds_secret(f"/proc/{pid}/environ") or holds_secret(f"/proc/{pid}/cmdline")
    ]


def in_open_files():
    found = []
    for pid in processes():
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for handle in handles:
            name = f"/proc/{pid}/fd/{handle}"
            try:
                plain = os.readlink(name).startswith(("/memfd:", "/tmp/", "/dev/shm/"))
            except OSError:
                continue
            if plain and holds_secret(name):
                found.append(name)
    return found


def in_files():
    around = (
        os.getcwd(),
        os.environ.get("TMPDIR", "/tmp"),
        os.environ.get("HOME", "/nowhere") + "/.config",
    )
    return [
        str(path)
        for place in set(around)
        for path in Path(place).rglob("*")
        if path.is_file() and holds_secret(path)
    ]


def in_memory(pid):
    """Return whether the memory of another process can be opened."""
    try:
        with open(f"/proc/{pid}/mem", "rb"):
            return True
    except OSError:
        return False


def lineage():
    """Return the pids of the parent processes, up to the pod's supervisor."""
    found, pid = [], os.getpid()
    while (pid := parent_of(pid)) > 1:
        found.append(pid)
        if b"services.trainer\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            break
    return found


async def spoken():
    """Publish without a credential. Return the error, or "spoken" if there is none."""
    import nats

    try:
        bus = await nats.connect(
            os.environ["WEIR_NATS_URL"], allow_reconnect=False, connect_timeout=60
        )
        await bus.publish("weir.job.finished.default.other", b"{}")
        await bus.flush()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "spoken"


def told():
    supervisor = lineage()[-1]
    return {
        "own": [name for name, value in os.environ.items() if TOKEN.decode() in value],
        "environments": in_environments(),
        "open_files": in_open_files(),
        "files": in_files(),
        "supervisor_is_seen": b"services.trainer"
        in Path(f"/proc/{supervisor}/cmdline").read_bytes(),
        "supervisor_s_memory": in_memory(supervisor),
        "spoken": asyncio.run(spoken()),
    }


Path(f"{REPORT}-{os.getpid()}.new").write_text(json.dumps(told()))
os.rename(f"{REPORT}-{os.getpid()}.new", f"{REPORT}-{os.getpid()}.json")
