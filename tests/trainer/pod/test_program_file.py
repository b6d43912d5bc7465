"""Tests of a program's file from a real store: a pod uses exactly the requested file or none."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from nats.js.api import ObjectLink, ObjectMeta, ObjectMetaOptions
from structlog.testing import capture_logs

from services.trainer.pod import executor
from services.trainer.program import BadProgram
from services.trainer.program_archive import holds_files, pack_files, remove_folder
from shared.auth.permissions import program_stream
from shared.bus import programs, streams
from shared.bus.bus import Bus
from shared.messages import LARGEST_PROGRAM, Program
from tests.conftest import WITHIN_S, NatsServer

BODY = b"def model(): ..."
DIGEST = "sha256-" + hashlib.sha256(BODY).hexdigest()
PROGRAM = Program(name="net.py", digest=DIGEST)


async def stored(bus: Bus, body: bytes) -> None:
    await (await bus.program_store()).put(DIGEST, body)


async def test_a_program_is_fetched_once(bus: Bus, tmp_path: Path) -> None:
    await stored(bus, BODY)
    path = await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")
    await (await bus.program_store()).delete(DIGEST)

    assert path == await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")
    assert path.name == "net.py" and path.read_bytes() == BODY


FILES = {"main.py": b"import helpers", "helpers.py": b"", "data/words.txt": b"a b"}
PACKED = pack_files(FILES)
FOLDER = Program(name="train", digest=programs.digest_of(PACKED), entry="main.py")


async def test_a_folder_is_fetched_once_and_unpacked(bus: Bus, tmp_path: Path) -> None:
    pod = tmp_path / "pod"
    await programs.store_program(bus, "default", FOLDER.digest, PACKED)
    path = await executor.fetch_program(bus, "default", FOLDER, pod)
    await (await bus.program_store()).delete(FOLDER.digest)

    assert path == await executor.fetch_program(bus, "default", FOLDER, pod)
    assert path == pod / FOLDER.digest / "main.py" and holds_files(path.parent, FILES)
    assert sorted(each.name for each in pod.iterdir()) == [FOLDER.digest, f"{FOLDER.digest}.zip"]
    remove_folder(pod)
    assert not pod.exists()


@pytest.mark.parametrize("entry", ["none.py", "../main.py", "/etc/passwd"])
async def test_an_entry_that_the_folder_lacks_is_refused(
    bus: Bus, tmp_path: Path, entry: str
) -> None:
    await programs.store_program(bus, "default", FOLDER.digest, PACKED)
    wrong = Program(name="train", digest=FOLDER.digest, entry=entry)

    with pytest.raises(BadProgram, match=f"^train has no file {entry}$"):
        await executor.fetch_program(bus, "default", wrong, tmp_path / "pod")
    assert not (tmp_path / "pod").exists()


async def test_an_archive_with_a_path_outside_is_not_unpacked(bus: Bus, tmp_path: Path) -> None:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("main.py", b"")
        archive.writestr("../../outside.py", b"")
    digest = programs.digest_of(body.getvalue())
    await programs.store_program(bus, "default", digest, body.getvalue())

    with pytest.raises(BadProgram, match=r"^train: \.\./\.\./outside\.py: a path is relative"):
        await executor.fetch_program(
            bus, "default", Program(name="train", digest=digest, entry="main.py"), tmp_path / "pod"
        )
    assert not list(tmp_path.rglob("outside.py")) and not (tmp_path / "pod").exists()


async def test_a_program_with_a_wrong_digest_is_refused_and_not_kept(
    bus: Bus, tmp_path: Path
) -> None:
    await stored(bus, b"import os")

    with pytest.raises(
        BadProgram,
        match=rf"^net.py cannot be fetched: the store has something else under {DIGEST}: ",
    ):
        await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")

    assert not (tmp_path / "pod").exists()


async def test_a_changed_local_copy_is_fetched_again(bus: Bus, tmp_path: Path) -> None:
    await stored(bus, BODY)
    path = await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")
    path.write_bytes(b"import os")

    assert (
        await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")
    ).read_bytes() == BODY
    assert list(path.parent.iterdir()) == [path]


async def test_a_path_in_a_program_name_is_ignored(bus: Bus, tmp_path: Path) -> None:
    await stored(bus, BODY)
    for name in ("../../../net.py", "/etc/net.py", "..\\net.py", "..", "net.py\0"):
        path = await executor.fetch_program(
            bus, "default", Program(name=name, digest=DIGEST), tmp_path / "pod"
        )
        assert path.parent == tmp_path / "pod" / DIGEST
    assert not list(tmp_path.rglob("etc")) and len(list((tmp_path / "pod").iterdir())) == 1


async def test_a_program_above_the_size_limit_is_not_read_completely(
    bus: Bus, tmp_path: Path
) -> None:
    await stored(bus, b"#" * (LARGEST_PROGRAM + 1))

    with pytest.raises(BadProgram, match=r"is larger than 16,777,216 bytes$"):
        await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")


async def test_a_link_in_the_bucket_is_not_followed(bus: Bus, tmp_path: Path) -> None:
    bucket = await bus.program_store()
    await bucket.put("elsewhere", BODY)
    link = ObjectMeta(
        name=DIGEST,
        options=ObjectMetaOptions(ObjectLink("weir-programs-default", "elsewhere"), 1024),
    )
    await bucket.put(DIGEST, b"", link)

    with pytest.raises(BadProgram, match="the description is a link"):
        await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")


async def test_a_program_repaired_during_the_fetch_is_used(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "TRIES", 100)
    await stored(bus, b"import os")
    fetching = asyncio.create_task(
        executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")
    )
    await asyncio.sleep(0.1)
    await stored(bus, BODY)

    assert (await fetching).read_bytes() == BODY


async def test_a_bus_outage_is_no_failure_of_the_program(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FETCH_S", 0.2)
    monkeypatch.setattr(executor, "TRIES", 2)
    monkeypatch.setattr(executor, "ANSWER_S", 0.2)
    bus.js._timeout = 0.3
    await stored(bus, BODY)
    with capture_logs() as lines, nats_server.hung():
        fetching = asyncio.create_task(
            executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")
        )
        async with asyncio.timeout(WITHIN_S):
            while len([line for line in lines if line["event"] == "ProgramNotAsAskedFor"]) < 3:
                assert not fetching.done()
                await asyncio.sleep(0.05)

    assert (await fetching).read_bytes() == BODY


async def test_a_missing_program_is_named(bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match=rf"the store has no {DIGEST}: .*NotFound"):
        await executor.fetch_program(bus, "default", PROGRAM, tmp_path / "pod")


async def test_pods_above_the_reader_limit_fetch_one_after_the_other(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may not delete its reader; the server does so soon after the pod has read.

    A pod that waits for this has not failed.
    """
    monkeypatch.setattr(streams, "PROGRAM_READERS", 2)
    await bus.create(namespaces=["crowded"])
    await programs.store_program(bus, "crowded", DIGEST, BODY)
    with capture_logs() as lines:
        fetching = [
            executor.fetch_program(bus, "crowded", PROGRAM, tmp_path / f"pod-{n}") for n in range(4)
        ]
        async with asyncio.timeout(
            WITHIN_S / 2
        ):  # less than the minute after which any server deletes a reader
            paths = await asyncio.gather(*fetching)
        readers = await bus.js.consumers_info(program_stream("crowded"))

    assert [path.read_bytes() for path in paths] == [BODY] * 4
    waiting = [line for line in lines if line["event"] == "ProgramWaitsForOtherReaders"]
    assert waiting and "its maximum number of readers" in waiting[0]["error"] and len(waiting) <= 2
    assert "ProgramNotAsAskedFor" not in [line["event"] for line in lines]
    assert (
        [reader.config.inactive_threshold for reader in readers]
        == [programs.IDLE_S] * 2
        == [5.0] * 2
    )
