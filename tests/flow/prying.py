"""What a hostile program tries, to be put behind a training program: find a credential, and speak
for somebody else.

It looks where its own user may look: its environment, that of every process, open files, the memory
of the process that started it, and files about it. What it finds and how it fares goes to a file
beside `REPORT`, a name with its number.
"""

import asyncio
import base64
import json
import os
from pathlib import Path

REPORT = "report"
TOKEN = base64.b64encode(
    b'{"typ":"JWT","alg":"ed25'
)  # how every credential of NATS goes on; this file has it nowhere
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
    """Those of our cluster; others on this machine may be tests of their own."""
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
    """Whether another process's memory can be opened at all."""
    try:
        with open(f"/proc/{pid}/mem", "rb"):
            return True
    except OSError:
        return False


def lineage():
    """Our parents, up to who started our pod's supervisor."""
    found, pid = [], os.getpid()
    while (pid := parent_of(pid)) > 1:
        found.append(pid)
        if b"services.trainer\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            break
    return found


async def spoken():
    """Without a credential: how the bus takes it."""
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
