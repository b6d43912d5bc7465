"""The watchdog: a program that never returns has failed, and its stack is reported.

Every call into the program's code runs inside `limit`. A thread checks all calls in progress, about
forty times a limit. For a call that exceeds the limit it reports name, time and stack, and ends the
process. It cannot run while a thread holds Python's global lock (a regular expression may do so for
ever). Then `faulthandler`, whose thread needs no lock, writes the stacks of all threads straight to
the supervisor and ends the process.

The watchdog counts time by its own checks, so a process that got no CPU for a while does not count
as stuck. `faulthandler` counts real time: a process that was stopped for longer than the limit ends
when it continues.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from services.trainer.program import is_program_file, own_name
from services.trainer.protocol import CAUSE_LENGTH, GENERATED_FILE, Failed
from services.trainer.worker.failure_cause import original_frames

CHECKS_PER_LIMIT = 40
MAX_CHECK_INTERVAL_S = 1.0
MISSED_CHECKS = 3  # checks missed after a limit mean that a thread holds the global lock

MissingTasks = Callable[[], list[str]]
Check = Callable[[], Failed | None]
OnFailure = Callable[[Failed], None]


class ProgramCall:
    """A call into the program's code, and its start by the watchdog's clock."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self.what = what
        self.thread = threading.get_ident()
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """Restart the time of this call: it has returned and is made again."""
        self.since_s = self._clock()


class Watchdog:
    """Limits the calls into the program, which run inside `limit`; runs `checks` each time, too.

    `program`: its file. `early_s`: the limit until `use_later_limit`, `later_s` from then on.
    `missing_tasks` returns tasks that this one has met and cannot reach any more: they are the
    cause of a late call then, not the program.
    """

    def __init__(self, program: str, early_s: float, later_s: float) -> None:
        self._program, self._later_s = program, later_s
        self._inside: set[ProgramCall] = set()
        self.checks: list[Check] = [self._overdue_call]
        self.missing_tasks: MissingTasks = list
        self.limit_s, self.clock_s = early_s, 0.0
        self._channel: int | None = None
        self._arming = threading.Lock()

    def start(self, channel: int, end: OnFailure) -> None:
        """Check for ever; `end` receives the first failure. `channel` takes the output of
        faulthandler.
        """
        self._channel = channel
        threading.Thread(target=self._watch, args=(end,), name="watchdog", daemon=True).start()

    def use_later_limit(self) -> None:
        """Use the later limit: training has begun, and no time limit of the launcher applies."""
        if self.limit_s != self._later_s:
            self.limit_s = self._later_s
            self._restart_faulthandler()

    @contextmanager
    def limit(self, what: str) -> Iterator[ProgramCall]:
        """Run the program's code in here, for at most the limit since the last `renew`."""
        inside = ProgramCall(what, lambda: self.clock_s)
        self._inside.add(inside)
        try:
            yield inside
        finally:
            self._inside.discard(inside)

    def check_all(self, gap_s: float) -> Failed | None:
        """Return a failure that is found `gap_s` seconds after the last check."""
        self.clock_s += min(gap_s, 2 * self._check_interval_s)
        for check in self.checks:
            failed = check()
            if failed:
                return failed
        return None

    def failure(self, cause: str) -> Failed:
        """Return a failure of the program, or of a missing task that it may be waiting for."""
        absent = self.missing_tasks()
        more = f"\nNot reachable: {', '.join(absent)}" if absent else ""
        return Failed(cause=cause + more, peer=bool(absent))

    @property
    def _check_interval_s(self) -> float:
        return min(self.limit_s / CHECKS_PER_LIMIT, MAX_CHECK_INTERVAL_S)

    def _overdue_call(self) -> Failed | None:
        late = [i for i in list(self._inside) if self.clock_s - i.since_s >= self.limit_s]
        if not late:
            return None
        worst = min(late, key=lambda i: i.since_s)
        stack = thread_stack(worst.thread, self._program)[-CAUSE_LENGTH:]
        return self.failure(
            f"{own_name(self._program)} is stuck: {worst.what} has not returned for"
            f" {self.limit_s:g} s. Stack (most recent call last):\n{stack}"
        )

    def _watch(self, end: OnFailure) -> None:
        while True:
            self._restart_faulthandler()
            before = time.monotonic()
            time.sleep(self._check_interval_s)
            failed = self.check_all(time.monotonic() - before)
            if failed is not None:
                end(failed)
                return

    def _restart_faulthandler(self) -> None:
        if self._channel is None:
            return
        with self._arming:
            limit_s = self.limit_s + MISSED_CHECKS * self._check_interval_s
            faulthandler.dump_traceback_later(limit_s, exit=True, file=self._channel)


def thread_stack(thread: int, program: str) -> str:
    """Return the stack of a thread from the program's own code on.

    Without such frames, return the stacks of other threads that are in the program, or the whole
    stack.
    """
    stacks = {
        n: original_frames(traceback.extract_stack(frame))
        for n, frame in sys._current_frames().items()
    }
    whole = stacks.pop(thread, [])
    own = _from_program(whole, program)
    if own:
        return _format_stacks([own])
    parts = [_from_program(stack, program) for stack in stacks.values()]
    return _format_stacks(list(filter(None, parts)) or [whole])


def _from_program(
    stack: list[traceback.FrameSummary], program: str
) -> list[traceback.FrameSummary]:
    """Return the part of a stack that begins with a file of the program, or with code that
    TensorFlow generated from it.
    """
    for at, frame in enumerate(stack):
        if is_program_file(frame.filename, program) or GENERATED_FILE in frame.filename:
            return stack[at:]
    return []


def _format_stacks(stacks: Iterable[list[traceback.FrameSummary]]) -> str:
    return "\n".join("".join(traceback.format_list(stack)) for stack in stacks)
