"""One container, once: its process from start to end, and nothing of it afterwards.

The process joins its pod's control groups before it becomes the command (a shell writes its own
number and then execs), so not an instant of it goes unmeasured. It leads a session of its own. When
it has ended, whatever it left behind is killed: in a real container the end of the first process is
the end of all.
"""

import asyncio
import shutil
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from pathlib import Path

from services.local.kubelet import processes
from services.local.kubelet.launch import Launch
from services.local.kubelet.status import End, end_of
from services.local.kubelet.world import World
from services.local.objects.bodies import Body, containers_of, node_of, uid_of

# $1: how many group files follow; then the command.
JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1"; shift; n=$((n-1)); done; exec "$@"'
START_ERROR = 128
KILLED = (
    -signal.SIGKILL,
    128 + signal.SIGKILL,
)  # the first process itself; one it waited for, as it says itself
LOOK_AGAIN_S = 0.01


class ContainerRun:
    def __init__(self, world: World, pod: Body, name: str) -> None:
        self.world = world
        self.pod = pod
        self.name = name
        self.mark = processes.mark_of(world.home, uid_of(pod), name)
        self.process: Process | None = None
        self.started_s = world.store.clock()

    async def start(self, launch: Launch) -> End | None:
        """None if it runs; otherwise why it does not."""
        self.started_s = self.world.store.clock()
        if shutil.which(launch.command[0], path=launch.environment.get("PATH")) is None:
            return self.not_started(
                f'exec: "{launch.command[0]}": executable file not found in $PATH'
            )
        try:
            self.process = await self.spawn(launch)
        except OSError as error:
            return self.not_started(str(error))
        return None

    def not_started(self, message: str) -> End:
        now = self.world.store.clock()
        return End(
            code=START_ERROR, started_s=now, ended_s=now, reason="StartError", message=message
        )

    async def spawn(self, launch: Launch) -> Process:
        file = self.world.log_file(self.pod, self.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        groups = [
            str(path) for path in self.world.cgroups.joining(node_of(self.pod), uid_of(self.pod))
        ]
        joined = (
            ["/bin/sh", "-c", JOIN, "sh", str(len(groups)), *groups, *launch.command]
            if groups
            else launch.command
        )
        environment = {**launch.environment, processes.MARK: self.mark}
        Path(launch.folder).mkdir(parents=True, exist_ok=True)
        with file.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *joined,
                cwd=launch.folder,
                env=environment,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                start_new_session=True,
            )

    async def wait(self) -> End:
        assert self.process is not None
        before = self.oom_kills()
        code = await self.process.wait()
        out_of_memory = code in KILLED and self.oom_kills() > before
        await self.clear()
        return end_of(code, self.started_s, self.world.store.clock(), out_of_memory)

    def oom_kills(self) -> int:
        return self.world.cgroups.oom_kills(node_of(self.pod), uid_of(self.pod))

    def terminate(self) -> None:
        """As a real kubelet: the first process is asked; what it does with its children is its
        affair.
        """
        if self.process is not None and self.process.returncode is None:
            processes.send(self.process.pid, signal.SIGTERM)

    def left(self) -> list[int]:
        """What runs in it, by its mark; and by the pod's group, if no other container shares
        that.
        """
        found = set(processes.marked_with(self.mark))
        if self.process is not None and self.process.returncode is None:
            found.add(self.process.pid)  # also where its mark cannot be read
        if len(containers_of(self.pod)) == 1:
            found |= set(self.world.cgroups.processes(node_of(self.pod), uid_of(self.pod)))
        return [pid for pid in found if processes.is_running(pid)]

    def kill(self) -> None:
        processes.kill(self.left())

    async def clear(self) -> None:
        while left := self.left():
            processes.kill(left)
            await asyncio.sleep(LOOK_AGAIN_S)
