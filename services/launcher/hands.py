"""Performing what was decided, a few at a time, and waiting before what failed is decided again.
Edge.

A failed action is not repeated here: after a while it is handed back, and the reconciler orders it
anew if it is still wanted. The wait grows with each failure in a row, so a server in trouble is
left in peace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from services.launcher import kube
from services.launcher.actions import Action, CreateSecret, Making, ResizePod
from services.launcher.minting import Minter
from services.launcher.settings import Settings
from shared.kube.client import Api

log = structlog.get_logger()

OnOutcome = Callable[[Action, str | None], None]
OnMade = Callable[[Action], None]


class Hands:
    """`on_outcome(action, refusal)`: it was not done, and may be ordered again; `refusal` says why
    it never will be. `on_made(action)`: it is done, and no watch will show it.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        on_outcome: OnOutcome,
        on_made: OnMade,
        minter: Minter | None = None,
    ) -> None:
        self.api = api
        self.settings = settings
        self.on_outcome = on_outcome
        self.on_made = on_made
        self.minter = minter
        self.failures: dict[str, int] = {}  # in a row, by action
        self.slots = asyncio.Semaphore(settings.kube_parallel)

    async def perform(self, action: Action) -> None:
        log.info(type(action).__name__, action=action.key())
        try:
            async with self.slots:
                await kube.perform(self._whole(action), self.api, self.settings)
            self.failures.pop(action.key(), None)
            if isinstance(action, CreateSecret):
                self.on_made(action)
        except kube.Refused as error:
            await self.refused(action, str(error))
        except kube.TryLater as error:
            await self.again_later(action, str(error))

    def _whole(self, action: Action) -> Action:
        """With the secret in it that it is about, which is nowhere else."""
        return (
            self.minter.filled(action)
            if isinstance(action, CreateSecret) and self.minter
            else action
        )

    async def refused(self, action: Action, why: str) -> None:
        """What cannot be made is handed back at once; a resize that cannot be is left; a deletion
        is tried again.
        """
        log.warning("Refused", action=action.key(), error=why)
        if isinstance(action, Making):
            self.on_outcome(action, why)
        elif not isinstance(action, ResizePod):
            await self.again_later(action, why)

    async def again_later(self, action: Action, why: str) -> None:
        count = self.failures[action.key()] = self.failures.get(action.key(), 0) + 1
        wait_s = self.api.backoff_s(count)
        log.warning("TryingAgain", action=action.key(), in_s=wait_s, error=why)
        await asyncio.sleep(wait_s)
        self.on_outcome(action, None)
