"""What it means that a child ended by itself: `supervise` judges, with what is remembered of each
generation here.

A child says why it ends, if it can. One that meets servers of a generation that is just going
prepares again, for an address may still have been another generation's; after `TRIES` children its
generation must do without this pod.
"""

from __future__ import annotations

from services.trainer import supervise
from services.trainer.orders import Failed
from services.trainer.supervise import Ending, Pod

TRIES = 3
KILLED = Failed(
    cause="the process that runs the program was killed, and could not say why: out of memory, perhaps",
    peer=True,
)


class Ends:
    """`causes`: last words, by generation. `tries`: how many children a generation has been
    given.
    """

    def __init__(self) -> None:
        self.causes: dict[int, Failed] = {}
        self.tries: dict[int, int] = {}

    def on_failed(self, generation: int, said: Failed) -> None:
        self.causes[generation] = said

    def forget(self, generation: int) -> None:
        """Another child is tried; the last one's words are not its own."""
        self.causes.pop(generation, None)

    def judged(self, pod: Pod, generation: int) -> tuple[Ending, Failed]:
        """What it means, and why it ended; `KILLED` where it could not say."""
        failure = self.causes.get(generation, KILLED)
        ending = supervise.on_child_end(
            pod, generation, peer=failure.peer, explained=failure is not KILLED
        )
        if ending == "prepares again" and not self.may_try(generation):
            return "is missed by its generation", failure
        return ending, failure

    def may_try(self, generation: int) -> bool:
        """Counts this as one more."""
        self.tries[generation] = self.tries.get(generation, 1) + 1
        return self.tries[generation] <= TRIES
