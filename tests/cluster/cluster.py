"""A Kubernetes cluster for the tests: commands, events, jobs, other users' pods, node drains.

It records the jobs that were submitted and the nodes that were cordoned, so that both can be
undone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

import yaml

from tests.cluster import strangers
from tests.programs import program_path

ROOT = Path(__file__).parents[2]
KUBECTL = shutil.which("kubectl") or program_path("kubectl")
"""Prefer the kubectl on the PATH: its version fits the cluster."""
COMMAND_S = 330.0  # longer than the timeouts that kubectl gets
Body = dict[str, Any]


class Job(NamedTuple):
    """A job that was accepted. The uid tells it from earlier jobs with the same name."""

    name: str
    uid: int


class Event(NamedTuple):
    """A line of `weir events --json`: the message, its tag, and its sequence in its stream."""

    fact: str
    sequence: int
    message: Body


class Cluster:
    """Run `kubectl` and `weir` with `environ`: KUBECONFIG, WEIR_NATS_URL and WEIR_NATS_CREDENTIALS.

    `deployed` sets the last two once they are known.
    """

    def __init__(self, folder: Path, image: str, namespace: str, environ: dict[str, str]) -> None:
        self.folder, self.image, self.namespace, self.environ = folder, image, namespace, environ
        self.asked: list[str] = []  # names of the submitted jobs
        self.cordoned: set[str] = set()

    def kubectl(self, *words: str, said: Body | None = None) -> str:
        """Return the output of a command; raise `AssertionError` with its errors if it fails."""
        return self._run([KUBECTL, *words], json.dumps(said) if said else "")

    def weir(self, *words: str) -> str:
        return self._run([sys.executable, "-m", "services", *words], "")

    def _run(self, words: list[str], said: str) -> str:
        done = subprocess.run(
            words,
            env=self.environ,
            cwd=ROOT,
            input=said,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    # ------------------------------------------------------------ events

    def events(self, job: Job) -> list[Event]:
        lines = self.weir(
            "events", "--json", "--namespace", self.namespace, "--job", job.name
        ).splitlines()
        return [event for event in map(_read, lines) if event.message.get("uid") == job.uid]

    def until(
        self, job: Job, fact: str, timeout_s: float, holds: Callable[[Body], bool] = lambda _: True
    ) -> Body:
        """Return the first message with the tag `fact` about the job for which `holds` is true.

        All messages since the request are read. Raises `AssertionError` if there is none within
        `timeout_s`, or if the job finishes before.
        """
        last: list[str] = []
        with self._followed(timeout_s, "--namespace", self.namespace, "--job", job.name) as told:
            for event in told:
                if event.message.get("uid") != job.uid:
                    continue
                if event.fact == fact and holds(event.message):
                    return event.message
                assert event.fact != "job.finished", (
                    f"{job.name} is over before {fact}: {event.message}"
                )
                last = [*last[-9:], f"{event.fact} {event.message.get('generation')}"]
        raise AssertionError(
            f"no such {fact} of {job.name} within {timeout_s:g} s; last: {', '.join(last)}"
        )

    def until_nodes(
        self, timeout_s: float, holds: Callable[[dict[str, Body]], bool]
    ) -> dict[str, Body]:
        """Wait until `holds` is true for the newest capacity fact of each node; return these facts.

        `holds` is checked on the present state and on later ones, not on earlier ones.
        """
        nodes, seen = dict[str, Body](), 0
        for event in map(_read, self.weir("events", "--json").splitlines()):
            seen = _noted(nodes, event, seen)
        with self._followed(timeout_s) as told:
            while not holds(nodes):
                news = next(told, None)
                assert news, (
                    f"no such nodes within {timeout_s:g} s; free cores: {strangers.free(nodes)}"
                )
                seen = _noted(nodes, news, seen)
        return nodes

    @contextmanager
    def _followed(self, timeout_s: float, *words: str) -> Iterator[Iterator[Event]]:
        """Yield the events that `weir events --follow` prints. It is killed after `timeout_s`."""
        command = [sys.executable, "-m", "services", "events", "--follow", "--json", *words]
        with subprocess.Popen(
            command, env=self.environ, cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            limit = Timer(timeout_s, process.kill)
            limit.start()
            try:
                yield map(_read, process.stdout or ())
            finally:
                limit.cancel()
                process.kill()

    # ------------------------------------------------------------ jobs

    def submit(self, program: Path, **fields: Any) -> Job:
        shutil.copy(program, self.folder)
        file = self.folder / f"{fields['job']}.yaml"
        file.write_text(
            yaml.safe_dump({"namespace": self.namespace, "program": program.name, **fields})
        )
        self.asked.append(fields["job"])  # before the answer, which may come after a timeout
        said = self.weir("submit", str(file), "--timeout", "120s")
        found = re.search(r"uid (\d+)", said)
        assert found is not None, said
        return Job(fields["job"], int(found[1]))

    def cancel(self, name: str) -> None:
        self.weir("cancel", name, "--namespace", self.namespace)
        self.asked.remove(name)

    def cancel_all(self) -> None:
        for name in list(self.asked):
            with suppress(AssertionError):  # it may be finished, or it was not accepted
                self.cancel(name)

    # ------------------------------------------------------------ other users' pods, nodes

    def come(self, name: str, node: str, cpu: float) -> None:
        for body in strangers.bodies(name, node, cpu, self.image):
            self.kubectl("apply", "-f", "-", said=body)

    def leave(self, *names: str) -> None:
        self.kubectl("delete", "pod", "-n", strangers.HOME, *(names or ("--all",)))

    def send_away(self) -> None:
        self.kubectl("delete", "namespace", strangers.HOME, "--ignore-not-found", "--timeout=120s")

    def drain(self, node: str, job: Job) -> None:
        """Cordon the node and evict the pods of this job, like `kubectl drain`.

        The pods of other users stay.
        """
        self.cordoned.add(node)
        self.kubectl("cordon", node)
        chosen = (
            "-l",
            f"weir.dev/job={job.name}",
            "--field-selector",
            f"spec.nodeName={node}",
            "-o",
            "name",
        )
        for pod in (
            self.kubectl("get", "pods", "-n", self.namespace, *chosen).replace("pod/", "").split()
        ):
            where = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
            self.kubectl(
                "create", "--raw", where, "-f", "-", said=strangers.eviction(pod, self.namespace)
            )

    def open_again(self) -> None:
        for node in sorted(self.cordoned):
            self.kubectl("uncordon", node)
        self.cordoned.clear()


def _read(line: str) -> Event:
    told = json.loads(line)
    return Event(told["fact"], told["sequence"], told["message"])


def _noted(nodes: dict[str, Body], event: Event, seen: int) -> int:
    """Record a capacity fact that is newer than sequence `seen`; return the last sequence."""
    if event.fact != "capacity.changed" or event.sequence <= seen:
        return seen
    nodes[event.message["node"]] = event.message
    return event.sequence
