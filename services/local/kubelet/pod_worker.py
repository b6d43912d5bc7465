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
    build_launch,
    empty_dirs,
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
    is_leaving,
    name_of,
    namespace_of,
    node_of,
    spec,
    uid_of,
    with_status,
    without_condition,
)
from services.local.objects.kinds import BY_NAME, POD

COMPONENT = "kubelet"
SOURCES = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
DEADLINE = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
SHUT_DOWN = ("Terminated", "the cluster was stopped")
"""The reason is the one that a real kubelet gives when its node is shut down."""


class PodWorker:
    def __init__(self, context: KubeletContext, pod: Body) -> None:
        self.context, self.pod = context, pod
        self.inits = [new_progress(c) for c in spec(pod).get("initContainers") or []]
        self.mains = [new_progress(c) for c in containers_of(pod)]
        self.runs: dict[str, ContainerRun] = {}
        self.stopping = asyncio.Event()
        self.killer: asyncio.TimerHandle | None = None
        self.cause: tuple[str, str] | None = (
            None  # why the whole pod failed, whatever its containers did
        )
        self.is_open = False  # there are groups in which its use is counted

    # ---- what may be asked from outside

    @property
    def granted_resources(self) -> dict[str, Body]:
        return {p.name: p.granted for p in self.mains}

    def stop(self, grace_s: float) -> None:
        """Asked twice, the shorter grace counts."""
        if not self.stopping.is_set():
            record_event(
                self.context.store,
                self.pod,
                COMPONENT,
                NORMAL,
                "Killing",
                "Stopping container " + ", ".join(self.runs),
            )
            for run in self.runs.values():
                run.terminate()
        self.stopping.set()
        self.kill_in(grace_s)

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
            record_event(self.context.store, pod, COMPONENT, WARNING, "ResizeFailed", str(error))
            return
        self.pod = pod
        for progress in self.mains:
            progress.granted = pod_status.desired_resources(pod)[progress.name]
        self.report(resized=True)

    def shut_down(self, grace_s: float) -> None:
        """The whole cluster ends: so whoever watches can tell it from a loss."""
        self.cause = SHUT_DOWN
        self.stop(grace_s)

    def out_of_time(self) -> None:
        self.cause = DEADLINE
        self.stop(float(spec(self.pod).get("terminationGracePeriodSeconds", 30)))

    # ---- the life

    async def live(self) -> None:
        deadline = spec(self.pod).get("activeDeadlineSeconds")
        timer = (
            asyncio.get_running_loop().call_later(deadline, self.out_of_time) if deadline else None
        )
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

    @property
    def temporary(self) -> Path:
        """What a pod writes there goes with it, as a container's /tmp does, however it ends."""
        return self.context.pod_folder(self.pod) / "tmp"

    def open(self) -> None:
        self.context.cgroups.open_pod(node_of(self.pod), uid_of(self.pod), pod_limits(self.pod))
        self.is_open = True
        self.temporary.mkdir(parents=True, exist_ok=True)
        for name in empty_dirs(self.pod):
            (self.context.pod_folder(self.pod) / "volumes" / name).mkdir(
                parents=True, exist_ok=True
            )

    def close(self) -> None:
        self.is_open = False
        self.context.cgroups.close_pod(node_of(self.pod), uid_of(self.pod))
        shutil.rmtree(self.context.pod_folder(self.pod), ignore_errors=True)
        self.report()
        current = self.current()
        if current is not None and is_leaving(current):
            self.context.store.finish_pod(POD, current)

    async def prepare(self) -> bool:
        """Run the init containers in turn; False: the containers are not to be started."""
        for progress, container in zip(
            self.inits, spec(self.pod).get("initContainers") or [], strict=True
        ):
            await self.run(progress, container, once_done=True)
            if progress.end is None or progress.end.code:
                return False
        return not self.stopping.is_set()

    async def run(
        self, progress: ContainerProgress, container: Body, once_done: bool = False
    ) -> None:
        """`once_done`: an init container, which is not run again after a success."""
        while not self.stopping.is_set():
            end = await self.run_once(progress, container)
            again = (
                end is not None
                and pod_status.should_restart(self.pod, end)
                and not (once_done and end.code == 0)
            )
            if self.stopping.is_set() or (end is not None and not again):
                progress.end = end
                break
            await self.back_off(progress, end)
        self.report()

    async def run_once(self, progress: ContainerProgress, container: Body) -> ContainerExit | None:
        """How it ended; None if its command or environment cannot be made yet."""
        run = self.runs[progress.name] = ContainerRun(self.context, self.pod, progress.name)
        base = {**self.context.base_of(str(container.get("image"))), "TMPDIR": str(self.temporary)}
        folder = str(self.context.data)
        try:
            launch = build_launch(
                self.pod, container, base, self.context.python, folder, self.look_up
            )
        except CannotLaunch as error:
            progress.waiting, progress.message = "CreateContainerConfigError", str(error)
            record_event(
                self.context.store, self.pod, COMPONENT, WARNING, "Failed", f"Error: {error}"
            )
            return None
        end = await run.start(launch)
        if end is not None:
            record_event(
                self.context.store, self.pod, COMPONENT, WARNING, "Failed", f"Error: {end.message}"
            )
            return end
        return await self.see_through(progress, run)

    async def see_through(self, progress: ContainerProgress, run: ContainerRun) -> ContainerExit:
        progress.started_s = run.started_s
        record_event(
            self.context.store,
            self.pod,
            COMPONENT,
            NORMAL,
            "Started",
            f"Started container {progress.name}",
        )
        self.report()
        if self.stopping.is_set():  # it was asked to stop while it was being started
            run.terminate()
        return await run.wait()

    async def back_off(self, progress: ContainerProgress, end: ContainerExit | None) -> None:
        settings, wait_s = self.context.settings, self.context.settings.retry_s
        if end is not None:
            wait_s = pod_status.restart_backoff_s(
                progress.restarts, settings.restart_first_s, settings.restart_longest_s
            )
            progress.last_end = end
            progress.started_s = None
            progress.restarts = progress.restarts + 1
            progress.waiting = pod_status.BACK_OFF
            record_event(
                self.context.store,
                self.pod,
                COMPONENT,
                WARNING,
                "BackOff",
                f"Back-off restarting failed container {progress.name}",
            )
        self.report()
        waiting = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait((waiting,), timeout=wait_s)
        waiting.cancel()

    # ---- what others see

    def current(self) -> Body | None:
        """The pod in the store, if it is still this one."""
        found = self.context.store.find(POD, namespace_of(self.pod), name_of(self.pod))
        return found if found is not None and uid_of(found) == uid_of(self.pod) else None

    def report(self, resized: bool = False) -> None:
        current = self.current()
        if current is None:
            return
        base = without_condition(current, "PodResizePending") if resized else current
        new = pod_status.with_progress(base, self.inits, self.mains, self.context.store.clock())
        if self.cause is not None:
            new = with_status(new, phase="Failed", reason=self.cause[0], message=self.cause[1])
        self.context.store.update(POD, new)

    def look_up(self, source: str, name: str, key: str) -> str | None:
        kind = BY_NAME["v1", SOURCES[source]]
        found = self.context.store.find(kind, namespace_of(self.pod), name)
        return None if found is None else decoded_values(found).get(key)


def decoded_values(source: Body) -> dict[str, str]:
    secret = source["kind"] == "Secret"
    plain = {
        key: base64.b64decode(text).decode() if secret else text
        for key, text in (source.get("data") or {}).items()
    }
    return {**plain, **(source.get("stringData") or {})}
