"""The stack on this machine with means to inject faults.

These are a proxy in front of the API server, a small disk, other users' pods, and the pace of
workers.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from services.cli import program_file
from services.local.cluster_spec import TenantSpec
from services.local.controllers import pod_spec
from services.local.stack import Stack
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import JobRequested
from tests.bench.chaos import standing
from tests.bench.chaos.gate import Gate
from tests.bench.chaos.signals import Missed, send
from tests.bench.chaos.watch import Watch
from tests.flow.stage import PACED, SLEEP
from tests.trainer import fleet

STRANGERS = (("node-3", 2.0), ("node-2", 1.0))
NAMESPACE = "tenants"
TASK = {"cpu": 1.0, "memory_gib": 2.0}
EXAMPLES, BATCH = 250, 16
CONSISTENCIES = ("global-batch", "async", "async", "global-batch")
"""Of the jobs in turn. Every second job reads its examples from files."""
WITH_TABLE_TURNS = (1, 3)
"""Of eight jobs, those with a table: one with `global-batch` and one with `async`. They read numbered
examples: `rows_wrong` knows the sizes of their batches.
"""
EVERY_S = float(os.environ.get("CHAOS_EVERY_S", "4"))
"""Seconds between two checkpoints; 0: the default of a job."""
REQUEST: dict[str, Any] = {
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 2},
    "workers": {"start": 2, "min": 2, "max": 3},
    "resources": {"chief": TASK, "ps": TASK, "worker": TASK},
    "policy": "config-manager",
    "checkpoint": {"every_s": EVERY_S or None},
    "grace_s": 5.0,
}
DISK_MIB = 256
BEAT = """

_counted = dataset


def dataset(numbers):
    made = _counted(numbers)
    if len(numbers) > 1:
        with open({beats!r}, "a") as beats:
            beats.write(f"{{time.time():.3f}}\\n")
    return made
"""
"""Append the time of each batch to a file when a worker reads it.

The batch is applied within milliseconds.
"""
FROM_FILES = """

_of_numbers = dataset
del dataset, examples


def files():
    return sorted(map(str, Path({folder!r}).glob("part-*")))


def read(file):
    def elements():
        numbers = np.array(Path(file).read_text().split(), np.int64)
        for start in range(0, len(numbers), 16):
            yield from _of_numbers(numbers[start : start + 16])

    spec = _of_numbers(np.arange(1)).element_spec
    return tf.data.Dataset.from_generator(elements, output_signature=spec)
"""
"""Variant of the program with examples in files of different lengths, read by a Python generator.
"""
WITH_TABLE = f"""

def model():
    numbers = keras.layers.Input((), dtype="int64")
    features = keras.layers.Input((4,))
    dense = keras.layers.Dense(1)(Counting()([numbers, features]))
    rows = keras.layers.Embedding(4096, 1024, embeddings_initializer="zeros")(numbers)
    return keras.Model([numbers, features], keras.layers.Concatenate()([dense, rows]))


def optimizer():
    return keras.optimizers.SGD({BATCH}.0)


def loss(labels, outputs):
    return 1e-6 * keras.losses.mean_squared_error(labels, outputs[:, :1]) - outputs[:, 1]
"""
"""Variant of the program with a table that is divided among the ps. An update adds the batch by its
number of examples to the first element of the row of each: 1, or more in the last batch of an epoch.
"""
EDGES = (0, 7, 8, 100, 100, 180, EXAMPLES)
"""File n has the numbers EDGES[n] .. EDGES[n + 1] - 1."""


class World:
    """`disk_by`: how the disk is made small, `tmpfs` or `permissions` (if mounts are forbidden)."""

    def __init__(self, stack: Stack, watch: Watch, door: Gate, folder: Path, disk_by: str) -> None:
        self.stack, self.watch, self.door, self.folder, self.disk_by = (
            stack,
            watch,
            door,
            folder,
            disk_by,
        )
        self.http = aiohttp.ClientSession(
            headers=stack.kube_headers, timeout=aiohttp.ClientTimeout(total=5.0)
        )
        self.strangers: list[str] = []
        self.uid, self.job = 0, ""
        self.submitted = 0
        self.made = 0
        self.killed = Counter[str]()  # how often each part of the stack was killed
        self.submitters: dict[str, Bus] = {}  # by namespace, with the credentials of its submitters

    # ------------------------------------------------------------ jobs

    async def submit(self, job: str, epochs: int, **fields: Any) -> int:
        """Submit a job of the counting program and make it the current job; return its uid."""
        self.submitted += 1
        with_table = self.submitted % 8 in WITH_TABLE_TURNS
        program = self._program(from_files=self.submitted % 2 == 0, with_table=with_table)
        kept = {
            "name": "counting.py",
            "digest": await program_file.store_program(self.watch.bus, program),
        }
        turn = {"consistency": CONSISTENCIES[(self.submitted - 1) % len(CONSISTENCIES)]}
        if with_table:
            turn["rate_with_workers"] = "keep"  # each update adds the same
        body = {**REQUEST, **turn, **fields, "job": job, "epochs": epochs, "program": kept}
        self.uid, self.job = await self.watch.bus.request(msgspec.convert(body, JobRequested)), job
        return self.uid

    def _program(self, from_files: bool, with_table: bool) -> bytes:
        text = (fleet.PROGRAMS / "counting.py").read_text()
        if with_table:
            text += WITH_TABLE
        text = text.replace(PACED, repr(str(self.folder / "pace")))
        text += BEAT.format(beats=str(self.folder / "beats"))
        if from_files:
            text += FROM_FILES.format(folder=str(self._example_files()))
        return text.encode()

    def _example_files(self) -> Path:
        """Write the files with the numbers of the examples; return their folder."""
        folder = self.folder / "examples"
        folder.mkdir(exist_ok=True)
        for part, (start, stop) in enumerate(pairwise(EDGES)):
            numbers = "".join(f"{number}\n" for number in range(start, stop))
            (folder / f"part-{part}").write_text(numbers)
        return folder

    def pace(self, seconds: float) -> None:
        """Set how long in s a worker waits before each batch from now on."""
        written = self.folder / "pace.new"
        written.write_text(str(seconds))
        written.rename(self.folder / "pace")

    def beats(self, from_s: float, to_s: float) -> list[float]:
        """Return the times at which batches were read, between two times."""
        path = self.folder / "beats"
        found = (
            sorted(float(line) for line in path.read_text().splitlines() if line)
            if path.exists()
            else []
        )
        return [at for at in found if from_s <= at <= to_s]

    @property
    def heard(self) -> list[StoredMessage]:
        """Return the messages about the current job."""
        return standing.of_job(self.watch.heard, self.uid)

    # ------------------------------------------------------------ the cluster

    def pid(self, part: str) -> int:
        """Return the pid of a part of the stack; raise `Missed` if it does not run."""
        process = self.stack.parts[part].process
        if process is None or process.returncode is not None:
            raise Missed(f"{part} is just starting")
        return process.pid

    def kill(self, *parts: str) -> None:
        """Kill parts of the stack. The stack starts them again at once, like Kubernetes."""
        send([self.pid(part) for part in parts], signal.SIGKILL)
        self.killed.update(parts)

    async def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        return await self.listed(f"namespaces/{namespace}/pods")

    async def occupied_node(self, choice: int) -> tuple[str, list[dict[str, Any]]]:
        """Return a node of the running generation, and its pods there; raise `Missed` if none."""
        here = {task.pod for task in standing.tasks(self.heard)}
        pods = [
            pod
            for pod in await self.pods()
            if pod["metadata"]["name"] in here and "nodeName" in pod["spec"]
        ]
        nodes = sorted({pod["spec"]["nodeName"] for pod in pods})
        if not nodes:
            raise Missed("no pod on any node")
        node = nodes[choice % len(nodes)]
        return node, [pod for pod in pods if pod["spec"]["nodeName"] == node]

    async def nodes(self) -> list[dict[str, Any]]:
        return await self.listed("nodes")

    async def listed(self, path: str) -> list[dict[str, Any]]:
        async with self.http.get(f"{self.stack.kube_url}/api/v1/{path}") as answer:
            answer.raise_for_status()
            items: list[dict[str, Any]] = (await answer.json())["items"]
            return items

    async def stands(self) -> bool:
        """Return whether each pod of the running generation is Running in the cluster."""
        try:
            phases = {
                pod["metadata"]["name"]: pod["status"].get("phase") for pod in await self.pods()
            }
        except (aiohttp.ClientError, TimeoutError):
            return False
        return all(phases.get(task.pod) == "Running" for task in standing.tasks(self.heard))

    async def evict(self, pod: str) -> None:
        async with self.http.delete(
            f"{self.stack.kube_url}/api/v1/namespaces/default/pods/{pod}"
        ) as answer:
            answer.raise_for_status()

    async def evict_politely(self, pod: str) -> None:
        """Evict a pod through the eviction API, like `kubectl drain`, with its grace period."""
        url = f"{self.stack.kube_url}/api/v1/namespaces/default/pods/{pod}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": "default"},
        }
        async with self.http.post(url, json=body) as answer:
            answer.raise_for_status()

    async def cordon(self, node: str, closed: bool) -> None:
        """Cordon or uncordon a node."""
        url = f"{self.stack.kube_url}/api/v1/nodes/{node}"
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self.http.patch(
            url, json={"spec": {"unschedulable": closed}}, headers=headers
        ) as answer:
            answer.raise_for_status()

    async def strangers_come(self) -> None:
        self.strangers = [await self.stranger(node, cpu) for node, cpu in STRANGERS]

    async def strangers_leave(self) -> None:
        leaving, self.strangers = self.strangers, []
        for name in leaving:
            await self.stranger_leaves(name)

    async def stranger(self, node: str, cpu: float) -> str:
        """Create a pod of another user that only sleeps; return its name."""
        self.made += 1
        name, namespaces = f"stranger-{self.made}", f"{self.stack.kube_url}/api/v1/namespaces"
        spec = pod_spec(TenantSpec(node=node, cpu=cpu))
        spec["containers"][0]["command"] = SLEEP
        await (await self.http.post(namespaces, json={"metadata": {"name": NAMESPACE}})).read()
        body = {"metadata": {"name": name}, "spec": spec}
        async with self.http.post(f"{namespaces}/{NAMESPACE}/pods", json=body) as answer:
            answer.raise_for_status()
        return name

    async def stranger_leaves(self, name: str) -> None:
        """Delete a pod of another user. It is no error if it is already gone."""
        url = f"{self.stack.kube_url}/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        await (await self.http.delete(url)).read()
