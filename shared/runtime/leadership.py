"""Leadership: of several replicas of a service one acts, the others stand by.

The lease is an entry of the bucket `weir-state`, written by compare-and-set: who writes on top of
the revision that he saw has it, anybody else is refused. A leader writes it anew every third of the
lease. No wall clock is compared:

- A leader counts from the moment *before* it sent the last write that the server took, and stops acting when HOLDS of
  the lease has passed since, whatever it has heard. It then ends, and is begun again as a stand-by.
- A stand-by counts from the moment *after* it first saw a revision, and writes on top of it when the whole lease has
  passed and the revision is still the same.

The server took the write between these two moments; so nobody takes over from one who still acts,
as long as the rates of the two clocks differ by less than 1 / HOLDS, however far apart what they
show. The clock must go on while the process or the machine sleeps. A leader that stops cleanly
writes an entry without a holder: then nobody need wait.

A stand-by is ready as soon as it stands by: were it not, a rolling update that waits for it would
wait for the very one that it is to replace.

One who is frozen between his last look at the clock and his act acts late for all that. So what is
said carries what its sender saw last (`Bus.publish`, `expect_last`), and the server refuses it if
another has spoken since.
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
from shared.runtime.health import STARTED
from shared.runtime.metrics import Family, Measure

log = structlog.get_logger()

DEPOSED = 3
"""Exit code of one that has lost its lease."""
HOLDS = 0.75
"""Part of the lease for which a leader acts without having renewed it."""
RENEWALS, LOOKS = 3, 20
"""In one lease: how often a leader renews it, and how often a stand-by looks."""
HOLDER_BYTES = 6
LEADER = Family(
    name="weir_leader", kind="gauge", help="1 while this replica leads, 0 while it stands by."
)
C = TypeVar("C", bound=Common)


class Deposed(ServiceExit):
    """We may act no longer: the lease was not renewed in time, or somebody else has it."""

    def __init__(self, service: str, why: str) -> None:
        super().__init__(DEPOSED)
        log.error("Deposed", service=service, why=why)


class LeaseEntry(msgspec.Struct, frozen=True):
    """What the entry says. `holder`: empty for one that was given back. `term`: how often it has
    changed hands.
    """

    holder: str = ""
    term: int = 0
    lease_s: float = 0.0


class SeenEntry(msgspec.Struct, frozen=True):
    """An entry, and since when (s, own clock) it has been this one; revision 0: there is none."""

    revision: int
    held: LeaseEntry
    since_s: float

    def open_to(self, holder: str, lease_s: float, now_s: float) -> bool:
        """Whether one who has watched since then may take it; what its holder thinks is the lease
        counts, too.
        """
        return self.held.holder in ("", holder) or now_s - self.since_s >= max(
            lease_s, self.held.lease_s
        )


def boot_time_s() -> float:
    """Seconds since this machine began, those included in which it slept."""
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
        self.renewed_s = -float("inf")  # when the last write was sent that the server took

    # ------------------------------------------------------------ standing by

    async def acquire(self) -> None:
        """Wait until it is ours."""
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
                        fell = f"the replica that led fell silent for {self.lease_s:g} s, and this one took over"
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
        """Raises `Deposed` once we may act no longer; costs a look at the clock."""
        if not self.leads:
            raise Deposed(
                self.service, f"term {self.term}: not renewed for {HOLDS} of {self.lease_s:g} s"
            )

    async def renew_forever(self) -> None:
        """Renew it for ever; raises `Deposed` at once when it is lost, also while the bus is
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
        """A write of ours whose answer got lost moved the revision; it counts for nothing else.
        Raises `Deposed`.
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
        """At a clean stop, when nothing acts any more."""
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
        """A server that lags behind may answer: then what is written on top of it is refused."""
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
        """Raises `Stale` where the entry is another; any other error: it may have been written."""
        sent_s = self.clock()
        body = msgspec.json.encode(held)
        self.revision = await self.bus.replace_entry(
            self.subject, body, on_top_of, self.lease_s / RENEWALS
        )
        self.renewed_s = sent_s


# ---------------------------------------------------------------- a service that one replica performs

Start = Callable[[Bus, C], Awaitable[None]]


def with_leadership(service: str, start: Start[C]) -> Start[C]:
    """`start`, as soon as this replica leads; the bus then says nothing that it has not the lease
    for.
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
    """Wait for it, ready meanwhile; then keep it until the bus closes."""
    log.info("StandsBy", service=lease.service, holder=lease.holder, lease_s=lease.lease_s)
    bus.on_closed(lease.release)
    bus.health.require(STARTED, lambda: not lease.leads)
    _report_leadership(bus, lambda: lease.leads)
    await lease.acquire()
    bus.must_lead = lease.must_lead
    bus.spawn(lease.renew_forever())


def _report_leadership(bus: Bus, leads: Callable[[], bool]) -> None:
    bus.health.add_source("leadership", lambda: [Measure(LEADER, {(): float(leads())})])
