"""The pod worker: runs one pod, from its admission to the end of its last process.

    1 create cgroups and folders   3 run the containers in parallel, restarted by `restartPolicy`
    2 run init containers in turn  4 write the last status; remove cgroups, folders, a leaving pod

A pod ends by itself, by `stop` (SIGTERM, then SIGKILL of all processes after the grace period), or
by `kill`.
"""

import asyncio
import base64
import shutil
from pathlib import Path

from services.local.events import NORMAL, WARNING, record_event
from services.local.kubelet import pod_status
from services.local.kubelet.container import (
    CannotLaunch,
    ContainerRun,
    KubeletContext,
    Values,
    build_launch,
    empty_dirs,
    write_files,
)
from services.local.kubelet.pod_status import (
    ContainerExit,
    ContainerProgress,
    new_progress,
    pod_limits,
)
from services.local.objects.bodies import (
    Body,
    containers_of,
    init_containers_of,
    is_leaving,
    namespace_of,
    node_of,
    spec,
    uid_of,
    with_status,
    without_condition,
)
from services.local.objects.kinds import BY_NAME, POD

COMPONENT = "kubelet"
DEADLINE = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
SHUT_DOWN = ("Terminated", "the cluster was stopped")
"""The reason is the one that a real kubelet gives when its node is shut down."""


class PodWorker:
    def __init__(self, context: KubeletContext, pod: Body) -> None:
        self.context, self.pod = context, pod
        self.inits = list(map(new_progress, init_containers_of(pod)))
        self.mains = list(map(new_progress, containers_of(pod)))
        self.runs: dict[str, ContainerRun] = {}
        self.stopping = asyncio.Event()
        self.killer: asyncio.TimerHandle | None = None
        self.cause: tuple[str, str] | None = None  # reason and message of a failure of the pod
        self.is_open = False  # its cgroups exist

    # ---- the interface of the kubelet

    @property
    def granted_resources(self) -> dict[str, Body]:
        return {p.name: p.granted for p in self.mains}

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. A second call may shorten it."""
        if not self.stopping.is_set():
            self.record(NORMAL, "Killing", "Stopping container " + ", ".join(self.runs))
            for run in self.runs.values():
                run.terminate()
        self.stopping.set()
        self.kill_in(grace_s)

    def record(self, kind: str, reason: str, message: str) -> None:
        record_event(self.context.store, self.pod, COMPONENT, kind, reason, message)

    def kill_in(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self.killer is None or loop.time() + grace_s < self.killer.when():
            if self.killer is not None:
                self.killer.cancel()
            self.killer = loop.call_later(grace_s, self.kill)

    def kill(self) -> None:
        self.stopping.set()
        for run in self.runs.values():
            run.kill()

    def resize(self, pod: Body) -> None:
        try:
            self.context.cgroups.resize(node_of(pod), uid_of(pod), pod_limits(pod))
        except OSError as error:  # such as a memory limit below what is in use
            self.record(WARNING, "ResizeFailed", str(error))
            return
        self.pod = pod
        for progress in self.mains:
            progress.granted = pod_status.desired_resources(pod)[progress.name]
        self.report(resized=True)

    def shut_down(self, grace_s: float) -> None:
        """Stop the pod because the whole cluster ends. Its reason differs from that of a lost
        node.
        """
        self.cause = SHUT_DOWN
        self.stop(grace_s)

    def stop_at_deadline(self) -> None:
        self.cause = DEADLINE
        self.stop(float(spec(self.pod).get("terminationGracePeriodSeconds", 30)))

    async def run_to_end(self) -> None:
        deadline = spec(self.pod).get("activeDeadlineSeconds")
        timer = None
        if deadline:
            timer = asyncio.get_running_loop().call_later(deadline, self.stop_at_deadline)
        try:
            self.open()
            if await self.prepare():
                await asyncio.gather(*map(self.run, self.mains, containers_of(self.pod)))
        except OSError as error:  # the machine refused a group or a folder
            self.cause = ("CannotRun", str(error))
        finally:
            for handle in (timer, self.killer):
                if handle is not None:
                    handle.cancel()
            self.kill()
            self.close()

    # ---- from start to end

    @property
    def temporary(self) -> Path:
        """The TMPDIR of the pod. It is deleted with the pod, as a container's /tmp is."""
        return self.context.pod_folder(self.pod) / "tmp"

    def open(self) -> None:
        self.context.cgroups.open_pod(node_of(self.pod), uid_of(self.pod), pod_limits(self.pod))
        self.is_open = True
        self.temporary.mkdir(parents=True, exist_ok=True)
        for name in empty_dirs(self.pod):
            (self.context.volumes_of(self.pod) / name).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        self.is_open = False
        self.context.cgroups.close_pod(node_of(self.pod), uid_of(self.pod))
        shutil.rmtree(self.context.pod_folder(self.pod), ignore_errors=True)
        self.report()
        current = self.current()
        if current is not None and is_leaving(current):
            self.context.store.finish_pod(POD, current)

    async def prepare(self) -> bool:
        """Run the init containers in turn. Return False if the containers must not be started."""
        for progress, container in zip(self.inits, init_containers_of(self.pod), strict=True):
            await self.run(progress, container, is_init=True)
            if progress.end is None or progress.end.code:
                return False
        return not self.stopping.is_set()

    async def run(
        self, progress: ContainerProgress, container: Body, is_init: bool = False
    ) -> None:
        """Run a container until it ends for good. An init container is not restarted after a
        success.
        """
        while not self.stopping.is_set():
            end = await self.run_once(progress, container)
            if self.stopping.is_set() or (end is not None and not self.restarts(end, is_init)):
                progress.end = end
                break
            await self.back_off(progress, end)
        self.report()

    def restarts(self, end: ContainerExit, is_init: bool) -> bool:
        return pod_status.should_restart(self.pod, end) and not (is_init and end.code == 0)

    async def run_once(self, progress: ContainerProgress, container: Body) -> ContainerExit | None:
        """Run a container once. Return None if its command or environment cannot be made yet."""
        run = self.runs[progress.name] = ContainerRun(self.context, self.pod, progress.name)
        base = self.context.base_of(str(container.get("image")))
        base["TMPDIR"] = str(self.temporary)
        python, folder = self.context.python, str(self.context.data)
        volumes = self.context.volumes_of(self.pod)
        try:
            write_files(self.pod, volumes, self.look_up)
            launch = build_launch(self.pod, container, base, python, folder, self.look_up, volumes)
        except CannotLaunch as error:
            progress.waiting, progress.message = "CreateContainerConfigError", str(error)
            self.record(WARNING, "Failed", f"Error: {error}")
            return None
        end = await run.start(launch)
        if end is not None:
            self.record(WARNING, "Failed", f"Error: {end.message}")
            return end
        progress.started_s = run.started_s
        self.record(NORMAL, "Started", f"Started container {progress.name}")
        self.report()
        if self.stopping.is_set():  # a stop was requested during the start
            run.terminate()
        return await run.wait()

    async def back_off(self, progress: ContainerProgress, end: ContainerExit | None) -> None:
        settings = self.context.settings
        wait_s = settings.retry_s
        if end is not None:
            wait_s = pod_status.restart_backoff_s(
                progress.restarts, settings.restart_first_s, settings.restart_longest_s
            )
            progress.last_end = end
            progress.started_s = None
            progress.restarts += 1
            progress.waiting = pod_status.BACK_OFF
            message = f"Back-off restarting failed container {progress.name}"
            self.record(WARNING, "BackOff", message)
        self.report()
        waiting = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait((waiting,), timeout=wait_s)
        waiting.cancel()

    # ---- the status in the store

    def current(self) -> Body | None:
        """Return the pod in the store, if it is still this one."""
        return self.context.store.latest(POD, self.pod)

    def report(self, resized: bool = False) -> None:
        """Write the status of the pod. `resized`: a pending resize is done."""
        current = self.current()
        if current is None:
            return
        if resized:
            current = without_condition(current, "PodResizePending")
        store = self.context.store
        new = pod_status.with_progress(current, self.inits, self.mains, store.clock())
        if self.cause is not None:
            reason, message = self.cause
            new = with_status(new, phase="Failed", reason=reason, message=message)
        store.update(POD, new)

    def look_up(self, kind: str, name: str) -> Values | None:
        """Return the values of a Secret or ConfigMap of the pod's namespace."""
        found = self.context.store.find(BY_NAME["v1", kind], namespace_of(self.pod), name)
        return None if found is None else decoded_values(found)


def decoded_values(source: Body) -> dict[str, bytes]:
    """Return the values of a ConfigMap or Secret."""
    encoded, plain = source.get("binaryData") or {}, source.get("data") or {}
    if source["kind"] == "Secret":
        encoded, plain = plain, source.get("stringData") or {}
    values = {key: base64.b64decode(text) for key, text in encoded.items()}
    return values | {key: str(text).encode() for key, text in plain.items()}
