"""Leadership (leader election with a lease): one of several replicas of a service acts, the others
stand by.

The lease is an entry of the bucket `weir-state`, written by compare-and-set: a replica that writes
on top of the revision that it has read gets the lease; all others are refused. A leader renews it
every third of the lease. No wall clocks are compared:

- A leader counts from the moment *before* it sent the last write that the server accepted. It stops
  acting after HOLDS of the lease, then exits, and is restarted as a stand-by.
- A stand-by counts from the moment *after* it first saw a revision. It writes on top of it when the
  whole lease has passed and the revision is still the same.

The server accepted the write between these two moments. So nobody takes over from a leader that
still acts, as long as the rates of the two clocks differ by less than 1 / HOLDS. The clock must go
on while the process or the machine sleeps. A leader that stops cleanly writes an entry without a
holder, so that nobody has to wait.

A stand-by is ready: otherwise a rolling update would wait for it while it waits for the replica
that the update is to replace.

A leader that is frozen between its check of the clock and its act acts late. So a message carries
the last sequence that its sender has read (`Bus.publish`, `expect_last`), and the server refuses it
if there is a later one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from shared.auth.permissions import bucket_subject, lease_key, stream_of
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.bus.subjects import STATE
from shared.runtime.app import ServiceExit
from shared.runtime.config import Common
from shared.runtime.metrics import STARTED, Family, Measure

log = structlog.get_logger()

DEPOSED = 3
"""Exit code of a replica that has lost its lease."""
HOLDS = 0.75
"""Part of the lease for which a leader acts without a renewal."""
RENEWALS, LOOKS = 3, 20
"""Renewals by a leader, and reads by a stand-by, in one lease."""
HOLDER_BYTES = 6
LEADER = Family(
    name="weir_leader", kind="gauge", help="1 while this replica leads, 0 while it stands by."
)
C = TypeVar("C", bound=Common)


class Deposed(ServiceExit):
    """The lease was not renewed in time, or another replica has it: this one must not act."""

    def __init__(self, service: str, why: str) -> None:
        super().__init__(DEPOSED)
        log.error("Deposed", service=service, why=why)


class LeaseEntry(msgspec.Struct, frozen=True):
    """The content of the entry. `holder`: empty after a release. `term`: the number of holders so
    far.
    """

    holder: str = ""
    term: int = 0
    lease_s: float = 0.0


class SeenEntry(msgspec.Struct, frozen=True):
    """An entry, and the time (s, own clock) since it has this revision; revision 0: there is
    none.
    """

    revision: int
    held: LeaseEntry
    since_s: float

    def open_to(self, holder: str, lease_s: float, now_s: float) -> bool:
        """Return True if a replica that has watched since then may take the lease. The longer of
        its own lease and the holder's counts.
        """
        return self.held.holder in ("", holder) or now_s - self.since_s >= max(
            lease_s, self.held.lease_s
        )


def boot_time_s() -> float:
    """Return seconds since the machine started, including sleep."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic()
    )


class Lease:
    def __init__(
        self,
        bus: Bus,
        service: str,
        lease_s: float,
        holder: str,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self.bus = bus
        self.service = service
        self.lease_s = lease_s
        self.holder = holder
        self.clock = clock
        self.subject = bucket_subject(STATE, lease_key(service))
        self.term, self.revision = 0, 0
        self.renewed_s = -float("inf")  # when the last accepted write was sent

    # ------------------------------------------------------------ standing by

    async def acquire(self) -> None:
        """Wait until this replica has the lease."""
        seen: SeenEntry | None = None
        while True:
            try:
                now = await self._read_entry()
                seen = seen if seen and seen.revision == now.revision else now
                if seen.open_to(self.holder, self.lease_s, self.clock()):
                    await self._write_entry(
                        LeaseEntry(self.holder, seen.held.term + 1, self.lease_s), seen.revision
                    )
                    if seen.held.holder not in ("", self.holder):
                        fell = (
                            f"the leader did not renew its lease for {self.lease_s:g} s, and this"
                            " replica took over"
                        )
                        self.bus.incidents.record("began again", fell)
                    self.term = seen.held.term + 1
                    log.info("Leads", service=self.service, term=self.term, holder=self.holder)
                    return
            except Stale:
                seen = None
            except NatsError as error:
                log.warning("LeaseWaits", error=repr(error))
            await asyncio.sleep(self.lease_s / LOOKS)

    # ------------------------------------------------------------ leading

    @property
    def left_s(self) -> float:
        return self.renewed_s + HOLDS * self.lease_s - self.clock()

    @property
    def leads(self) -> bool:
        return self.left_s > 0

    def must_lead(self) -> None:
        """Raise `Deposed` if this replica must not act. Costs one read of the clock."""
        if not self.leads:
            raise Deposed(
                self.service, f"term {self.term}: not renewed for {HOLDS} of {self.lease_s:g} s"
            )

    async def renew_forever(self) -> None:
        """Renew the lease for ever. Raises `Deposed` at once when it is lost, also while the bus is
        away.
        """
        while True:
            due_s = self.renewed_s + self.lease_s / RENEWALS - self.clock()
            await asyncio.sleep(max(0.0, min(due_s, self.left_s)))
            self.must_lead()
            try:
                async with asyncio.timeout(max(0.0, self.left_s)):
                    await self._renew()
            except (NatsError, TimeoutError) as error:
                self.must_lead()
                log.warning("LeaseNotRenewed", left_s=round(self.left_s, 2), error=repr(error))
                await asyncio.sleep(min(self.lease_s / LOOKS, max(0.0, self.left_s)))

    async def _renew(self) -> None:
        try:
            await self._write_entry(LeaseEntry(self.holder, self.term, self.lease_s), self.revision)
        except Stale:
            await self._find_ours()

    async def _find_ours(self) -> None:
        """Read the revision again: a write of this replica whose answer was lost may have changed
        it. Raises `Deposed`.
        """
        found = await self._read_entry()
        if found.held.holder != self.holder:
            self.renewed_s = -float("inf")
            raise Deposed(
                self.service,
                f"term {self.term}: {found.held.holder or 'nobody'} has {found.held.term}",
            )
        self.revision = found.revision
        raise NatsError("the revision had moved")

    async def release(self) -> None:
        """Release the lease at a clean stop, when nothing acts any more."""
        if not self.leads:
            return
        try:
            found = await self._read_entry()
            if found.held.holder == self.holder:
                await self._write_entry(LeaseEntry("", self.term, self.lease_s), found.revision)
                log.info("GaveBack", service=self.service, term=self.term)
        except (NatsError, Stale) as error:
            log.warning("NotGivenBack", error=repr(error))
        self.renewed_s = -float("inf")

    # ------------------------------------------------------------ the entry

    async def _read_entry(self) -> SeenEntry:
        """Read the entry. A replica that lags may answer; a write on top of an old revision is
        refused.
        """
        try:
            raw = await self.bus.js.get_msg(stream_of(STATE), subject=self.subject, direct=True)
        except NotFoundError:
            return SeenEntry(0, LeaseEntry(), self.clock())
        try:
            held = msgspec.json.decode(raw.data or b"", type=LeaseEntry)
        except msgspec.DecodeError:
            held = LeaseEntry("unreadable")
        return SeenEntry(int(raw.seq or 0), held, self.clock())

    async def _write_entry(self, held: LeaseEntry, on_top_of: int) -> None:
        """Write the entry. Raises `Stale` for another revision; after any other error it may be
        written.
        """
        sent_s = self.clock()
        body = msgspec.json.encode(held)
        self.revision = await self.bus.replace_entry(
            self.subject, body, on_top_of, self.lease_s / RENEWALS
        )
        self.renewed_s = sent_s


# ---------------------------------------------------------------- a service with one acting replica

Start = Callable[[Bus, C], Awaitable[None]]


def with_leadership(service: str, start: Start[C]) -> Start[C]:
    """Return a `start` that waits until this replica leads. The bus then publishes only with the
    lease.
    """

    async def when_leading(bus: Bus, settings: C) -> None:
        if settings.lease_s > 0:
            await lead_service(
                bus, Lease(bus, service, settings.lease_s, secrets.token_hex(HOLDER_BYTES))
            )
        else:
            _report_leadership(bus, lambda: True)
        await start(bus, settings)

    return when_leading


async def lead_service(bus: Bus, lease: Lease) -> None:
    """Wait for the lease, ready meanwhile; then renew it until the bus closes."""
    log.info("StandsBy", service=lease.service, holder=lease.holder, lease_s=lease.lease_s)
    bus.on_closed(lease.release)
    bus.health.require(STARTED, lambda: not lease.leads)
    _report_leadership(bus, lambda: lease.leads)
    await lease.acquire()
    bus.must_lead = lease.must_lead
    bus.spawn(lease.renew_forever())


def _report_leadership(bus: Bus, leads: Callable[[], bool]) -> None:
    bus.health.add_source("leadership", lambda: [Measure(LEADER, {(): float(leads())})])
