"""The object store and its watch caches.

Objects are kept by kind, namespace and name, under one revision number for all of them. Every write
makes a new body and takes the next revision. A write that changes nothing takes none. No function
here waits, so each call is a transaction. Deletion follows the rules of the real store:

    finalizers left            -> deletionTimestamp is set; the object stays until an update removes
                                  the last finalizer
    a pod that is on a node    -> deletionTimestamp and grace are set; the kubelet removes the pod
                                  when it has ended
    grace 0 for such a pod     -> MODIFIED with deletionTimestamp, then DELETED, at once
    otherwise                  -> DELETED

Objects are in memory only. A cluster that is started again is a new one, with higher revisions.

One `WatchCache` for each kind holds the recent changes in order. A change is encoded once for all
watchers. A watcher is a position in the cache: it reads the changes after it and sleeps on `news`.
So watchers cost nothing while nothing changes, and a slow watcher delays no other. If the cache has
discarded its position, it gets 410 Expired and lists again, as with a real API server.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
from sortedcontainers import SortedDict

from services.local.objects.bodies import (
    Body,
    already_exists,
    conflict,
    expired_error,
    forbidden,
    format_time,
    has_ended,
    is_leaving,
    meta,
    name_of,
    namespace_of,
    node_of,
    not_found,
    owners_of,
    spec,
    uid_of,
    with_meta,
    with_status,
)
from services.local.objects.kinds import KINDS, NAMESPACE, POD, QUOTA, Kind
from services.local.objects.label_selectors import Match
from services.local.objects.resources import quota_error

Key = tuple[str, str]  # namespace, name
BEFORE_ALL: Key = ("", "")  # names are not empty

CONFLICT_MESSAGE = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
FOREGROUND = "foregroundDeletion"
JOURNAL_LENGTH = 20_000
"""The most changes of one kind in a watch cache."""


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a deletion."""

    grace_s: int | None = None  # None: the grace period in the spec of the pod
    uid: str | None = None  # precondition
    revision: str | None = None  # precondition
    orphan: bool = False  # keep its dependents
    foreground: bool = False  # delete its dependents first


PLAIN_DELETION = Deletion()
DELETE_AT_ONCE = Deletion(grace_s=0)


def new_uid() -> str:
    return str(uuid.uuid4())


class Store:
    def __init__(
        self,
        first_revision: int,
        clock: Callable[[], float] = time.time,
        uids: Callable[[], str] = new_uid,
        journal_length: int = JOURNAL_LENGTH,
    ) -> None:
        self.clock, self.uids = clock, uids
        self.revision = first_revision
        # Sorted by key, so that a page of a list begins in the middle (`make bench-scale`: 150,000
        # pods in pages).
        self.objects: dict[str, SortedDict[Key, ObjectVersion]] = {}
        self.watch_caches: dict[str, WatchCache] = {}
        for kind in KINDS:
            self.objects[kind.stored_as] = SortedDict()
            self.watch_caches[kind.stored_as] = WatchCache(first_revision, journal_length)
        self.alive: dict[str, tuple[Kind, Key]] = {}  # by uid
        self.owned: dict[str, dict[str, tuple[Kind, Key]]] = {}  # by the owner's uid, then by uid
        self.news = asyncio.Event()  # set, and replaced, at every write of any kind

    def now(self) -> str:
        return format_time(self.clock())

    def watch_cache(self, kind: Kind) -> WatchCache:
        return self.watch_caches[kind.stored_as]

    # ---- reading

    def find(self, kind: Kind, namespace: str, name: str) -> Body | None:
        stored = self.objects[kind.stored_as].get((namespace, name))
        return stored.body if stored else None

    def latest(self, kind: Kind, body: Body) -> Body | None:
        """Return the latest version of an object; None if it is deleted, or another object has its
        name now.
        """
        found = self.find(kind, namespace_of(body), name_of(body))
        return found if found is not None and uid_of(found) == uid_of(body) else None

    def read(self, kind: Kind, namespace: str, name: str) -> Body:
        body = self.find(kind, namespace, name)
        if body is None:
            raise not_found(kind.plural, name, kind.group)
        return body

    def list_objects(self, kind: Kind, namespace: str = "") -> list[ObjectVersion]:
        """Return all objects of a kind, or those of one namespace, by namespace and name."""
        return list(self.list_after(kind, namespace, BEFORE_ALL))

    def list_after(self, kind: Kind, namespace: str, after: Key) -> Iterator[ObjectVersion]:
        """Yield the objects of `list_objects` after a key. Write nothing during the iteration."""
        objects = self.objects[kind.stored_as]
        for key in objects.irange(max(after, (namespace, "")), inclusive=(False, False)):
            if namespace and key[0] != namespace:
                return
            yield objects[key]

    def count_after(self, kind: Kind, namespace: str, after: Key) -> int:
        """Return the number of objects that `list_after` yields."""
        objects = self.objects[kind.stored_as]
        begin = objects.bisect_right(max(after, (namespace, "")))
        end = objects.bisect_left((f"{namespace}\0", "")) if namespace else len(objects)
        return int(end - begin)

    def bodies(self, kind: Kind) -> Iterator[Body]:
        return (stored.body for stored in list(self.objects[kind.stored_as].values()))

    # ---- writing

    def create(self, kind: Kind, body: Body) -> Body:
        namespace, name = key = (namespace_of(body), name_of(body))
        if key in self.objects[kind.stored_as]:
            raise already_exists(kind.plural, name)
        if kind.namespaced:
            self.check_namespace(namespace, f"{kind.plural} {name}")
        if kind is POD:
            self.check_quotas(body)
        return self.write_version(kind, key, ADDED, None, body)

    def check_namespace(self, namespace: str, what: str) -> None:
        if is_leaving(self.read(NAMESPACE, "", namespace)):
            raise forbidden(
                f"{what} is forbidden: unable to create new content in namespace {namespace}"
                " because it is being terminated"
            )

    def check_quotas(self, pod: Body) -> None:
        namespace = namespace_of(pod)
        for quota in self.list_objects(QUOTA, namespace):
            pods = (each.body for each in self.list_objects(POD, namespace))
            if why := quota_error(quota.body, pod, pods):
                raise forbidden(f'pods "{name_of(pod)}" is forbidden: {why}')

    def update(self, kind: Kind, body: Body) -> Body:
        """Store a new version of an object; return it. Raises Conflict if the body names a revision
        that is not the latest.
        """
        key = (namespace_of(body), name_of(body))
        old: ObjectVersion | None = self.objects[kind.stored_as].get(key)
        if old is None:
            raise not_found(kind.plural, name_of(body), kind.group)
        check_revision(kind, old.body, body)
        if with_meta(body, resourceVersion=meta(old.body)["resourceVersion"]) == old.body:
            return old.body
        if is_leaving(body) and has_finalizers(kind, old.body) and self.may_be_removed(kind, body):
            return self.remove_object(kind, key, body)
        return self.write_version(kind, key, MODIFIED, old, body)

    def change(
        self, kind: Kind, namespace: str, name: str, modify: Callable[[Body], Body]
    ) -> Body | None:
        """Update an object with a function of its latest version. Return None if there is none."""
        body = self.find(kind, namespace, name)
        return None if body is None else self.update(kind, modify(body))

    def write_version(
        self, kind: Kind, key: Key, verb: str, old: ObjectVersion | None, body: Body
    ) -> Body:
        """Write the next revision, and wake the watchers."""
        self.revision += 1
        new = ObjectVersion(with_meta(body, resourceVersion=str(self.revision)), self.revision)
        self.unindex_object(kind, key, old)
        if verb != DELETED:
            self.index_object(kind, key, new)
        self.watch_cache(kind).append(Change(verb, old, new), self.clock())
        self.news = _next_event(self.news)
        return new.body

    def index_object(self, kind: Kind, key: Key, new: ObjectVersion) -> None:
        uid = uid_of(new.body)
        self.objects[kind.stored_as][key] = new
        self.alive[uid] = (kind, key)
        for owner in owners_of(new.body):
            self.owned.setdefault(str(owner.get("uid")), {})[uid] = (kind, key)

    def unindex_object(self, kind: Kind, key: Key, old: ObjectVersion | None) -> None:
        if old is None:
            return
        uid = uid_of(old.body)
        self.objects[kind.stored_as].pop(key, None)
        self.alive.pop(uid, None)
        for owner in owners_of(old.body):
            self.owned.get(str(owner.get("uid")), {}).pop(uid, None)

    def dependents(self, owner_uid: str) -> list[tuple[Kind, Body]]:
        found = []
        for kind, key in self.owned.get(owner_uid, {}).values():
            stored = self.objects[kind.stored_as].get(key)
            if stored:
                found.append((kind, stored.body))
        return found

    def remove_object(self, kind: Kind, key: Key, body: Body) -> Body:
        return self.write_version(kind, key, DELETED, self.objects[kind.stored_as][key], body)

    # ---- deleting

    def delete(self, kind: Kind, body: Body, options: Deletion = PLAIN_DELETION) -> Body:
        """Delete an object, or mark it until its finalizers and its pod's processes are gone. The
        object is found by name.
        """
        body = self.read(kind, namespace_of(body), name_of(body))
        check_preconditions(kind, body, options)
        if self.must_wait(kind, body, options):
            return self.mark_deleted(kind, body, options)
        return self.remove_now(kind, body)

    def must_wait(self, kind: Kind, body: Body, options: Deletion) -> bool:
        if has_finalizers(kind, body) or options.foreground:
            return True
        return self.grace_period_s(kind, body, options) > 0

    def grace_period_s(self, kind: Kind, body: Body, options: Deletion) -> int:
        """Return the grace period of a pod on a node: the shortest that was requested."""
        if not is_on_node(kind, body):
            return 0
        grace_s = options.grace_s
        if grace_s is None:
            grace_s = spec(body).get("terminationGracePeriodSeconds", 30)
        earlier_s = meta(body).get("deletionGracePeriodSeconds")
        return int(grace_s) if earlier_s is None else min(int(grace_s), int(earlier_s))

    def mark_deleted(self, kind: Kind, body: Body, options: Deletion) -> Body:
        metadata = meta(body)
        grace_s = self.grace_period_s(kind, body, options)
        changes: Body = {}
        if not (is_leaving(body) and metadata.get("deletionGracePeriodSeconds") == grace_s):
            changes["deletionTimestamp"] = format_time(self.clock() + grace_s)
            changes["deletionGracePeriodSeconds"] = grace_s
        finalizers = metadata.get("finalizers") or []
        if options.foreground and FOREGROUND not in finalizers:
            changes["finalizers"] = [*finalizers, FOREGROUND]
        marked = with_meta(body, **changes)
        if kind is NAMESPACE:
            marked = with_status(marked, phase="Terminating")
        return self.update(kind, marked)

    def remove_now(self, kind: Kind, body: Body) -> Body:
        key = (namespace_of(body), name_of(body))
        if is_on_node(kind, body) and not leaves_now(body):
            marked = with_meta(body, deletionTimestamp=self.now(), deletionGracePeriodSeconds=0)
            old = self.objects[kind.stored_as][key]
            body = self.write_version(kind, key, MODIFIED, old, marked)
        return self.remove_object(kind, key, body)

    def may_be_removed(self, kind: Kind, body: Body) -> bool:
        """Return True for a leaving object without finalizers, whose pod has no processes."""
        if has_finalizers(kind, body):
            return False
        return leaves_now(body) or not is_on_node(kind, body)

    def finish_pod(self, kind: Kind, body: Body) -> None:
        """Remove a pod whose processes have ended, unless it has finalizers, or another pod has its
        name now.
        """
        if self.latest(kind, body) is not None:
            self.delete(kind, body, DELETE_AT_ONCE)


def has_finalizers(kind: Kind, body: Body) -> bool:
    if meta(body).get("finalizers"):
        return True
    return kind is NAMESPACE and bool(spec(body).get("finalizers"))


def is_on_node(kind: Kind, body: Body) -> bool:
    """Return True for a pod that has a node, and has not ended."""
    return kind.name == "Pod" and bool(node_of(body)) and not has_ended(body)


def check_revision(kind: Kind, old: Body, new: Body) -> None:
    """Raise Conflict if the new body names a revision that is not the latest."""
    if meta(new).get("resourceVersion") not in (None, "", meta(old)["resourceVersion"]):
        raise conflict(kind.plural, name_of(old), CONFLICT_MESSAGE)


def leaves_now(body: Body) -> bool:
    return is_leaving(body) and meta(body).get("deletionGracePeriodSeconds") == 0


def check_preconditions(kind: Kind, body: Body, options: Deletion) -> None:
    for field, wanted in (("uid", options.uid), ("resourceVersion", options.revision)):
        found = meta(body)[field]
        if wanted and found != wanted:
            why = f"the {field} in the precondition ({wanted}) is not the one in record ({found})"
            raise conflict(kind.plural, name_of(body), why)


def _next_event(event: asyncio.Event) -> asyncio.Event:
    """Wake the waiters of an event; return the event for the next change."""
    event.set()
    return asyncio.Event()


KEPT_S = 300.0
"""`etcd-compaction-interval` of a kube-apiserver."""

encode = msgspec.json.Encoder().encode

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"


class ObjectVersion:
    """One version of one object, and its JSON, which is encoded at the first use."""

    __slots__ = ("_encoded", "body", "revision")

    def __init__(self, body: Body, revision: int) -> None:
        self.body, self.revision = body, revision
        self._encoded: bytes | None = None

    @property
    def encoded_body(self) -> bytes:
        if self._encoded is None:
            self._encoded = encode(self.body)
        return self._encoded


def watch_line(verb: str, encoded: bytes) -> bytes:
    return b'{"type":"' + verb.encode() + b'","object":' + encoded + b"}\n"


class Change:
    __slots__ = ("_lines", "after", "before", "revision", "verb")

    def __init__(self, verb: str, before: ObjectVersion | None, after: ObjectVersion) -> None:
        self.verb = verb
        self.before = before
        self.after = after
        self.revision = after.revision
        self._lines: dict[str, bytes] = {}

    def event_type_for(self, match: Match) -> str | None:
        """Return the type of the event for a watcher with this selector; None: no event."""
        matched_before = self.before is not None and match(self.before.body)
        matches_now = match(self.after.body)
        if not matched_before and not matches_now:
            return None
        if self.verb == DELETED or not matches_now:
            return DELETED
        return MODIFIED if matched_before else ADDED

    def visible_body(self, verb: str) -> Body:
        """Return the body of the event. An object that stopped matching is shown in its last
        version that matched, at the revision of the change.
        """
        if verb == DELETED != self.verb and self.before is not None:
            return with_meta(self.before.body, resourceVersion=str(self.revision))
        return self.after.body

    def line(self, verb: str) -> bytes:
        if verb not in self._lines:
            body = self.visible_body(verb)
            is_current = body is self.after.body
            encoded = self.after.encoded_body if is_current else encode(body)
            self._lines[verb] = watch_line(verb, encoded)
        return self._lines[verb]


class WatchCache:
    """The recent changes of one kind. Changes that are older than `KEPT_S` are discarded, as etcd
    is compacted, and the oldest ones if there are more than `length`.
    """

    def __init__(self, since: int, length: int) -> None:
        self.floor = since  # changes up to and including this revision are discarded
        self.changes: deque[Change] = deque()
        self.written_s: deque[float] = deque()
        self.length = length
        self.news = asyncio.Event()

    def append(self, change: Change, now_s: float) -> None:
        self.changes.append(change)
        self.written_s.append(now_s)
        while len(self.changes) > self.length or self.written_s[0] < now_s - KEPT_S:
            self.written_s.popleft()
            self.floor = self.changes.popleft().revision
        self.news = _next_event(self.news)

    def after(self, revision: int) -> list[Change]:
        """Return every change after a revision. Raises Expired if some of them are discarded."""
        if revision < self.floor:
            raise expired_error(revision, self.floor)
        changes = self.changes
        if not changes or changes[-1].revision <= revision:
            return []
        start = bisect_right(changes, revision, key=lambda change: change.revision)
        if not start:
            return list(changes)
        return [changes[index] for index in range(start, len(changes))]
