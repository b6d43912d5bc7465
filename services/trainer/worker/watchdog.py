"""The watchdog: a program that never returns has failed, and is made to say where it stands.

Whoever enters the program's own code does so inside `limited`. A thread looks at all who are
inside, some forty times a limit; of one who stays longer it tells the name, the time and the stack,
and ends the process. It cannot look while somebody keeps Python's global lock to himself (a regular
expression can do so for ever): then `faulthandler`, whose thread needs no lock, writes the stacks
of all threads straight to the supervisor and ends the process.

The dog counts time by its own looks, so a process that got no CPU for a while has not been stuck
meanwhile. `faulthandler` counts real time: a process that was stopped for longer than the limit
ends when it goes on.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.trainer.protocol import CAUSE_LENGTH, GENERATED, Failed
from services.trainer.worker.failure_cause import as_written

LOOKS = 40  # a limit
LONGEST_LOOK_S = 1.0
MISSED = 3  # looks; so many more than a limit has, and the global lock is not given back

Absent = Callable[[], list[str]]
Check = Callable[[], Failed | None]
End = Callable[[Failed], None]


class Inside:
    """Somebody who is in the program's code, since when by the dog's clock."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self.what = what
        self.thread = threading.get_ident()
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """It has come back and goes in again."""
        self.since_s = self._clock()


class Watchdog:
    """`limited` is for whoever enters the program; `checks` are asked at each look, too.

    `program`: its file. `early_s`: the limit until `relax`, `later_s` from then on. `absent` names
    the tasks that this one has met and cannot reach any more: while there are any, what takes too
    long is their fault, not the program's.
    """

    def __init__(self, program: str, early_s: float, later_s: float) -> None:
        self._program, self._later_s = program, later_s
        self._inside: set[Inside] = set()
        self.checks: list[Check] = [self._overdue]
        self.absent: Absent = list
        self.limit_s, self.clock_s = early_s, 0.0

    def start(self, channel: int, end: End) -> None:
        """Look for ever; `end` is told what is wrong, once. `channel` takes what faulthandler
        writes.
        """
        threading.Thread(
            target=self._watch, args=(channel, end), name="watchdog", daemon=True
        ).start()

    def relax(self) -> None:
        """Training has begun, and no launcher waits for it any more."""
        self.limit_s = self._later_s

    @contextmanager
    def limited(self, what: str) -> Iterator[Inside]:
        """Be in the program's code, at most for the limit since the last `renew`."""
        inside = Inside(what, lambda: self.clock_s)
        self._inside.add(inside)
        try:
            yield inside
        finally:
            self._inside.discard(inside)

    def look(self, gap_s: float) -> Failed | None:
        """What is wrong, `gap_s` seconds after the last look."""
        self.clock_s += min(gap_s, 2 * self._look_s)
        return next((failed for check in self.checks if (failed := check())), None)

    def failed(self, cause: str) -> Failed:
        """The program's failure, unless a task is missing that it may be waiting for."""
        absent = self.absent()
        more = f"\nNot reachable: {', '.join(absent)}" if absent else ""
        return Failed(cause=cause + more, peer=bool(absent))

    @property
    def _look_s(self) -> float:
        return min(self.limit_s / LOOKS, LONGEST_LOOK_S)

    def _overdue(self) -> Failed | None:
        late = [i for i in list(self._inside) if self.clock_s - i.since_s >= self.limit_s]
        if not late:
            return None
        worst = min(late, key=lambda i: i.since_s)
        stack = stack_of(worst.thread, self._program)[-CAUSE_LENGTH:]
        return self.failed(
            f"{Path(self._program).name} is stuck: {worst.what} has not returned for {self.limit_s:g} s. "
            f"Where it stands (most recent call last):\n{stack}"
        )

    def _watch(self, channel: int, end: End) -> None:
        while True:
            faulthandler.dump_traceback_later(
                self.limit_s + MISSED * self._look_s, exit=True, file=channel
            )
            before = time.monotonic()
            time.sleep(self._look_s)
            failed = self.look(time.monotonic() - before)
            if failed is not None:
                end(failed)
                return


def stack_of(thread: int, program: str) -> str:
    """Where a thread stands, from the program's own code on; or those that run the program for it;
    or all of it.
    """
    stacks = {
        n: as_written(traceback.extract_stack(frame)) for n, frame in sys._current_frames().items()
    }
    whole = stacks.pop(thread, [])
    own = _from_program(whole, program)
    if own:
        return _written([own])
    helping = [part for stack in stacks.values() if (part := _from_program(stack, program))]
    return _written(helping or [whole])


def _from_program(
    stack: list[traceback.FrameSummary], program: str
) -> list[traceback.FrameSummary]:
    """The part of a stack that begins with the program's file, or with what TensorFlow has made of
    its functions.
    """
    entered = (
        at
        for at, frame in enumerate(stack)
        if frame.filename == program or GENERATED in frame.filename
    )
    return stack[next(entered, len(stack)) :]


def _written(stacks: Iterable[list[traceback.FrameSummary]]) -> str:
    return "\n".join("".join(traceback.format_list(stack)) for stack in stacks)
