"""A copy of a stream that lags: its answers are outdated."""

from __future__ import annotations

from typing import Any

from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from shared.bus.bus import Bus


class LaggingCopy:
    """Answers one connection's reads of the last message on a subject.

    It replaces the copies of the server.
    """

    def __init__(self, bus: Bus) -> None:
        self._read, self._held = bus.js.get_msg, dict[str, RawStreamMsg | NotFoundError]()
        bus.js.get_msg = self._answer  # type: ignore[method-assign]

    async def fall_behind(self, stream: str, subject: str) -> None:
        """Until `catch_up`, answer with the message that the subject has at this call."""
        try:
            self._held[subject] = await self._read(stream, subject=subject, direct=True)
        except NotFoundError as error:
            self._held[subject] = error

    def catch_up(self) -> None:
        self._held.clear()

    async def _answer(
        self, stream: str, seq: int | None = None, subject: str | None = None, **options: Any
    ) -> RawStreamMsg:
        if subject not in self._held:
            return await self._read(stream, seq=seq, subject=subject, **options)
        held = self._held[subject]
        if isinstance(held, NotFoundError):
            raise held
        return held
