"""Fixtures: what a version of Weir has written.

    <version>/commit            the commit of that version
    <version>/log.jsonl.gz      a line for each stored message of each stream, buckets included
    <version>/checkpoint/       the files of the checkpoint that the ledger names, while the job
                                runs
    <version>/running.jsonl.gz  the log at that time; `log` continues until the job has finished

Later versions read these files, and `tests/versions/install.py` installs the version itself.
"""

from __future__ import annotations

import base64
import gzip
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from shared.bus.client import connect_client
from shared.bus.subjects import ORDERS
from tests.conftest import NatsServer

FIXTURES = Path(__file__).parent / "fixtures"
LOG, RUNNING, CHECKPOINT, COMMIT = "log.jsonl.gz", "running.jsonl.gz", "checkpoint", "commit"
ANY_ACCOUNT = "$G"
"""The account of a server without credentials."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored message. `body`: in base64; `stored_s`: seconds since 1970."""

    stream: str
    sequence: int
    stored_s: float
    subject: str
    headers: dict[str, str] = {}
    body: str = ""

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.body)


def versions() -> list[str]:
    """Return every recorded version."""
    return (
        sorted(path.name for path in FIXTURES.iterdir() if (path / LOG).exists())
        if FIXTURES.exists()
        else []
    )


def read_log(version: str, name: str = LOG) -> list[Record]:
    """Return a recorded log, in the order of storing."""
    with gzip.open(FIXTURES / version / name) as file:
        records = [msgspec.json.decode(line, type=Record) for line in file]
    return sorted(records, key=lambda record: record.stored_s)


def write_log(path: Path, records: Iterable[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")


async def dump_store(store: Path) -> list[Record]:
    """Return everything in the JetStream folder of a server that has stopped."""
    account = next(
        each for each in (store / "jetstream").iterdir() if (each / "streams" / ORDERS).exists()
    )
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(account, Path(name) / "jetstream" / ANY_ACCOUNT)
        server = NatsServer(Path(name))
        await server.start()
        client = await connect_client(server.url)
        try:
            return await _dump(client)
        finally:
            await client.close()
            await server.kill()


async def _dump(client: Client) -> list[Record]:
    js = client.jetstream()
    records = []
    for info in await js.streams_info():
        stream = str(info.config.name)
        for sequence in range(max(info.state.first_seq, 1), info.state.last_seq + 1):
            try:
                raw = await js.get_msg(stream, sequence)
            except NotFoundError:
                continue
            records.append(
                Record(
                    stream=stream,
                    sequence=sequence,
                    stored_s=raw.time.timestamp() if raw.time else 0.0,
                    subject=str(raw.subject),
                    headers=dict(raw.headers or {}),
                    body=base64.b64encode(raw.data or b"").decode(),
                )
            )
    return records
