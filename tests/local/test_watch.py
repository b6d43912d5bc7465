"""Tests of watches: the events that a watcher gets."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from kubernetes.aio import watch

from services.local.objects.bodies import ApiError
from services.local.objects.label_selectors import label_selector
from services.local.store import Change, ObjectVersion, WatchCache
from tests.local.builders import idle, node, pod


class Listener:
    """One open watch; it reads an event from each line."""

    def __init__(self, answer):
        self.answer = answer

    async def next(self):
        return json.loads(await asyncio.wait_for(self.answer.content.readline(), 60))

    async def told(self, count):
        events = [await self.next() for _ in range(count)]
        return [(e["type"], e["object"]["metadata"]["name"]) for e in events]

    async def silent(self, seconds=0.15):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.answer.content.readline(), seconds)


@asynccontextmanager
async def watching(cluster, path="/api/v1/namespaces/default/pods", **query):
    async with (
        aiohttp.ClientSession(cluster.url) as session,
        session.get(path, params={"watch": "1", **query}) as answer,
    ):
        yield Listener(answer)


async def revision(kube):
    return (await kube.v1.list_namespaced_pod("default")).metadata.resource_version


async def test_a_watch_yields_only_changes_after_the_list(cluster, kube):
    await kube.create(idle("before"))
    async with watching(cluster, resourceVersion=await revision(kube)) as ear:
        await kube.create(idle("p"))
        await kube.v1.patch_namespaced_pod("p", "default", {"metadata": {"labels": {"m": "1"}}})
        await kube.v1.delete_namespaced_pod("p", "default")
        assert await ear.told(3) == [("ADDED", "p"), ("MODIFIED", "p"), ("DELETED", "p")]


async def test_a_watch_without_a_revision_starts_with_every_object(cluster, kube):
    await kube.create(idle("a"))
    async with watching(cluster) as ear:
        assert await ear.told(1) == [("ADDED", "a")]
        await kube.create(idle("b"))
        assert await ear.told(1) == [("ADDED", "b")]


async def test_a_watch_from_an_old_revision_yields_missed_changes(cluster, kube):
    since = await revision(kube)
    await kube.create(idle("p"))
    await kube.v1.delete_namespaced_pod("p", "default")
    async with watching(cluster, resourceVersion=since) as ear:
        assert await ear.told(2) == [("ADDED", "p"), ("DELETED", "p")]


async def test_a_forced_deletion_is_modified_then_deleted(cluster, kube):
    await kube.v1.create_node(node("sim"))
    await kube.create(idle("p", nodeName="sim"))
    async with watching(cluster, resourceVersion=await revision(kube)) as ear:
        await kube.v1.delete_namespaced_pod("p", "default", grace_period_seconds=0)
        assert await ear.told(2) == [("MODIFIED", "p"), ("DELETED", "p")]


async def test_an_object_that_stops_matching_is_reported_as_deleted(cluster, kube):
    async with watching(
        cluster, resourceVersion=await revision(kube), labelSelector="app=x"
    ) as ear:
        await kube.create(idle("other", labels={"app": "y"}))
        await kube.create(idle("p", labels={"app": "x"}))
        left = await kube.v1.patch_namespaced_pod(
            "p", "default", {"metadata": {"labels": {"app": "y"}}}
        )
        assert await ear.told(1) == [("ADDED", "p")]
        gone = await ear.next()
        assert gone["type"] == "DELETED" and gone["object"]["metadata"]["labels"] == {"app": "x"}
        assert gone["object"]["metadata"]["resourceVersion"] == left.metadata.resource_version
        await ear.silent()


async def test_a_pod_appears_in_its_nodes_watch_when_it_is_bound(cluster, kube):
    await kube.v1.create_node(node("sim"))
    query = {"resourceVersion": await revision(kube), "fieldSelector": "spec.nodeName=sim"}
    async with watching(cluster, "/api/v1/pods", **query) as ear:
        await kube.create(idle("p"))
        await kube.bind("p", "sim")
        assert await ear.told(1) == [("ADDED", "p")]


async def test_a_watch_ends_at_its_timeout(cluster):
    async with watching(cluster, timeoutSeconds=1) as ear:
        assert await asyncio.wait_for(ear.answer.content.read(), 60) == b""


async def test_requested_bookmarks_have_the_revision(cluster, kube):
    async with watching(
        cluster, resourceVersion=await revision(kube), allowWatchBookmarks="true"
    ) as ear:
        told = await ear.next()
    assert told["type"] == "BOOKMARK" and int(told["object"]["metadata"]["resourceVersion"]) > 0


async def test_a_streamed_list_ends_with_a_bookmark(cluster, kube):
    await kube.create(idle("a"))
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with watching(cluster, **query) as ear:
        assert await ear.told(1) == [("ADDED", "a")]
        end = await ear.next()
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_forgotten_revision_is_an_error_inside_the_stream(cluster):
    async with watching(cluster, resourceVersion="1") as ear:
        told = await ear.next()
        assert ear.answer.status == 200
    assert told["type"] == "ERROR" and (told["object"]["code"], told["object"]["reason"]) == (
        410,
        "Expired",
    )


async def test_a_future_revision_is_refused(cluster):
    async with watching(cluster, resourceVersion=str(10**18)) as ear:
        assert ear.answer.status == 504


async def test_the_official_watch_client_works(cluster, kube):
    seen = []
    await kube.create(idle("before"))
    async with watch.Watch() as watcher:
        async for event in watcher.stream(
            kube.v1.list_namespaced_pod, "default", timeout_seconds=60
        ):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 2:
                break
            await kube.create(idle("p"))
        else:
            pytest.fail("nothing was seen")
    assert seen == [("ADDED", "before"), ("ADDED", "p")]


async def test_all_watchers_see_the_same_order(cluster, kube):
    since = await revision(kube)

    async def hear():
        async with watching(cluster, resourceVersion=since) as ear:
            return await ear.told(20)

    ears = [asyncio.create_task(hear()) for _ in range(8)]
    await asyncio.gather(*(kube.create(idle(f"p{i}")) for i in range(20)))
    heard = await asyncio.gather(*ears)
    assert all(one == heard[0] for one in heard) and len(set(heard[0])) == 20


def stored(name, revision, **labels):
    return ObjectVersion(
        pod(name, labels=labels, meta={"resourceVersion": str(revision)}), revision
    )


async def test_a_journal_drops_the_oldest_changes_and_reports_it():
    journal = WatchCache(0, length=2)
    for number in (1, 2, 3):
        journal.append(Change("ADDED", None, stored(f"p{number}", number)), 0.0)
    assert [c.revision for c in journal.after(1)] == [2, 3] and journal.after(3) == []
    with pytest.raises(ApiError, match="too old resource version: 0"):
        journal.after(0)


async def test_a_journal_drops_old_changes_and_keeps_the_newest():
    journal = WatchCache(0, length=9)
    for number, at_s in ((1, 0.0), (2, 1.0), (3, 300.5), (4, 1000.0)):
        journal.append(Change("ADDED", None, stored(f"p{number}", number)), at_s)
        assert journal.after(number - 1)[-1].revision == number
    assert journal.floor == 3


def test_an_event_is_encoded_once():
    change = Change("MODIFIED", stored("p", 1, a="b"), stored("p", 2, a="b"))
    assert change.event_type_for(label_selector("a=b")) == "MODIFIED"
    assert change.line("MODIFIED") is change.line("MODIFIED")
