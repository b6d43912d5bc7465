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

from services.local.objects.api_errors import (
    already_exists,
    conflict,
    expired_error,
    forbidden,
    not_found,
)
from services.local.objects.bodies import (
    Body,
    format_time,
    has_ended,
    is_leaving,
    meta,
    name_of,
    namespace_of,
    node_of,
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
JOURNAL_LENGTH = 20_000  # changes of one kind that a watch can go back


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """How somebody wants an object gone."""

    grace_s: int | None = None  # None: what the pod itself asks for
    uid: str | None = None  # precondition
    revision: str | None = None  # precondition
    orphan: bool = False  # leave what it owns
    foreground: bool = False  # take what it owns first


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
        self.objects: dict[str, SortedDict[Key, ObjectVersion]] = {
            kind.stored_as: SortedDict() for kind in KINDS
        }
        self.watch_caches = {
            kind.stored_as: WatchCache(first_revision, journal_length) for kind in KINDS
        }
        self.alive: dict[str, tuple[Kind, Key]] = {}  # by uid
        self.owned: dict[
            str, dict[str, tuple[Kind, Key]]
        ] = {}  # by the owner's uid, then by their own
        self.news = asyncio.Event()  # set, and replaced, at every write of any kind

    def now(self) -> str:
        return format_time(self.clock())

    def watch_cache(self, kind: Kind) -> WatchCache:
        return self.watch_caches[kind.stored_as]

    # ---- reading

    def find(self, kind: Kind, namespace: str, name: str) -> Body | None:
        stored = self.objects[kind.stored_as].get((namespace, name))
        return stored.body if stored else None

    def read(self, kind: Kind, namespace: str, name: str) -> Body:
        body = self.find(kind, namespace, name)
        if body is None:
            raise not_found(kind.plural, name, kind.group)
        return body

    def list_objects(self, kind: Kind, namespace: str = "") -> list[ObjectVersion]:
        """All of a kind, or of one namespace, by namespace and name."""
        return list(self.list_after(kind, namespace, BEFORE_ALL))

    def list_after(self, kind: Kind, namespace: str, after: Key) -> Iterator[ObjectVersion]:
        """As `stored`, from behind a key. Nothing may be written while this is read."""
        objects = self.objects[kind.stored_as]
        for key in objects.irange(max(after, (namespace, "")), inclusive=(False, False)):
            if namespace and key[0] != namespace:
                return
            yield objects[key]

    def count_after(self, kind: Kind, namespace: str, after: Key) -> int:
        """How many `stored_after` would give."""
        objects = self.objects[kind.stored_as]
        begin = objects.bisect_right(max(after, (namespace, "")))
        end = objects.bisect_left((f"{namespace}\0", "")) if namespace else len(objects)
        return int(end - begin)

    def bodies(self, kind: Kind) -> Iterator[Body]:
        return (stored.body for stored in list(self.objects[kind.stored_as].values()))

    # ---- writing

    def create(self, kind: Kind, body: Body) -> Body:
        key = (namespace_of(body), name_of(body))
        if key in self.objects[kind.stored_as]:
            raise already_exists(kind.plural, key[1])
        if kind.namespaced:
            self.check_namespace(key[0], f"{kind.plural} {key[1]}")
        if kind is POD:
            self.check_quotas(body)
        return self.write_version(kind, key, ADDED, None, body)

    def check_namespace(self, namespace: str, what: str) -> None:
        if is_leaving(self.read(NAMESPACE, "", namespace)):
            raise forbidden(
                f"{what} is forbidden: unable to create new content in namespace {namespace} because it is "
                f"being terminated"
            )

    def check_quotas(self, pod: Body) -> None:
        namespace = namespace_of(pod)
        for quota in self.list_objects(QUOTA, namespace):
            if why := quota_error(
                quota.body, pod, (each.body for each in self.list_objects(POD, namespace))
            ):
                raise forbidden(f'pods "{name_of(pod)}" is forbidden: {why}')

    def update(self, kind: Kind, body: Body) -> Body:
        """Raises Conflict if the body names a revision that is not the latest."""
        key = (namespace_of(body), name_of(body))
        old: ObjectVersion | None = self.objects[kind.stored_as].get(key)
        if old is None:
            raise not_found(kind.plural, key[1], kind.group)
        if meta(body).get("resourceVersion") not in (None, "", meta(old.body)["resourceVersion"]):
            raise conflict(kind.plural, key[1], CONFLICT_MESSAGE)
        same = with_meta(body, resourceVersion=meta(old.body)["resourceVersion"])
        if same == old.body:
            return old.body
        if is_leaving(body) and has_finalizers(kind, old.body) and self.may_be_removed(kind, body):
            return self.remove_object(kind, key, body)
        return self.write_version(kind, key, MODIFIED, old, body)

    def change(
        self, kind: Kind, namespace: str, name: str, how: Callable[[Body], Body]
    ) -> Body | None:
        """As the system's parts write: the latest version through `how`; None: there is no such
        object.
        """
        body = self.find(kind, namespace, name)
        return None if body is None else self.update(kind, how(body))

    def write_version(
        self, kind: Kind, key: Key, verb: str, old: ObjectVersion | None, body: Body
    ) -> Body:
        self.revision += 1
        new = ObjectVersion(with_meta(body, resourceVersion=str(self.revision)), self.revision)
        self.unindex_object(kind, key, old)
        if verb != DELETED:
            self.index_object(kind, key, new)
        self.watch_cache(kind).append(Change(verb, old, new), self.clock())
        told, self.news = self.news, asyncio.Event()
        told.set()
        return new.body

    def index_object(self, kind: Kind, key: Key, new: ObjectVersion) -> None:
        self.objects[kind.stored_as][key] = new
        self.alive[uid_of(new.body)] = (kind, key)
        for owner in owners_of(new.body):
            self.owned.setdefault(str(owner.get("uid")), {})[uid_of(new.body)] = (kind, key)

    def unindex_object(self, kind: Kind, key: Key, old: ObjectVersion | None) -> None:
        if old is None:
            return
        self.objects[kind.stored_as].pop(key, None)
        self.alive.pop(uid_of(old.body), None)
        for owner in owners_of(old.body):
            self.owned.get(str(owner.get("uid")), {}).pop(uid_of(old.body), None)

    def dependents(self, owner_uid: str) -> list[tuple[Kind, Body]]:
        places = list(self.owned.get(owner_uid, {}).values())
        return [
            (kind, stored.body)
            for kind, key in places
            if (stored := self.objects[kind.stored_as].get(key))
        ]

    def remove_object(self, kind: Kind, key: Key, body: Body) -> Body:
        return self.write_version(kind, key, DELETED, self.objects[kind.stored_as][key], body)

    # ---- deleting

    def delete(self, kind: Kind, namespace: str, name: str, how: Deletion) -> Body:
        body = self.read(kind, namespace, name)
        check_preconditions(kind, body, how)
        return (
            self.mark_deleted(kind, body, how)
            if self.must_wait(kind, body, how)
            else self.remove_now(kind, body, how)
        )

    def must_wait(self, kind: Kind, body: Body, how: Deletion) -> bool:
        return has_finalizers(kind, body) or how.foreground or self.grace(kind, body, how) > 0

    def grace(self, kind: Kind, body: Body, how: Deletion) -> int:
        if kind.name != "Pod" or not node_of(body) or has_ended(body):
            return 0
        wanted = (
            spec(body).get("terminationGracePeriodSeconds", 30)
            if how.grace_s is None
            else how.grace_s
        )
        earlier = meta(body).get("deletionGracePeriodSeconds")
        return int(wanted) if earlier is None else min(int(wanted), int(earlier))

    def mark_deleted(self, kind: Kind, body: Body, how: Deletion) -> Body:
        grace = self.grace(kind, body, how)
        changes: Body = {
            "deletionTimestamp": format_time(self.clock() + grace),
            "deletionGracePeriodSeconds": grace,
        }
        if is_leaving(body) and meta(body).get("deletionGracePeriodSeconds") == grace:
            changes = {}
        if how.foreground and "foregroundDeletion" not in (meta(body).get("finalizers") or []):
            changes["finalizers"] = [*(meta(body).get("finalizers") or []), "foregroundDeletion"]
        marked = with_meta(body, **changes)
        return self.update(
            kind, with_status(marked, phase="Terminating") if kind is NAMESPACE else marked
        )

    def remove_now(self, kind: Kind, body: Body, how: Deletion) -> Body:
        key = (namespace_of(body), name_of(body))
        if kind.name == "Pod" and node_of(body) and not has_ended(body) and not leaves_now(body):
            marks = {"deletionTimestamp": self.now(), "deletionGracePeriodSeconds": 0}
            body = self.write_version(
                kind, key, MODIFIED, self.objects[kind.stored_as][key], with_meta(body, **marks)
            )
        return self.remove_object(kind, key, body)

    def may_be_removed(self, kind: Kind, body: Body) -> bool:
        """A leaving object that nothing holds any more."""
        return not has_finalizers(kind, body) and (
            kind.name != "Pod" or leaves_now(body) or not node_of(body) or has_ended(body)
        )

    def finish_pod(self, kind: Kind, body: Body) -> None:
        """The kubelet's last word: it has ended and may go, unless a finalizer holds it or it is
        another.
        """
        current = self.find(kind, namespace_of(body), name_of(body))
        if current is not None and uid_of(current) == uid_of(body):
            self.delete(kind, namespace_of(body), name_of(body), Deletion(grace_s=0))


def has_finalizers(kind: Kind, body: Body) -> bool:
    return bool(meta(body).get("finalizers")) or (
        kind is NAMESPACE and bool(spec(body).get("finalizers"))
    )


def leaves_now(body: Body) -> bool:
    return is_leaving(body) and meta(body).get("deletionGracePeriodSeconds") == 0


def check_preconditions(kind: Kind, body: Body, how: Deletion) -> None:
    for field, wanted in (("uid", how.uid), ("resourceVersion", how.revision)):
        if wanted and meta(body)[field] != wanted:
            why = f"the {field} in the precondition ({wanted}) is not the one in record ({meta(body)[field]})"
            raise conflict(kind.plural, name_of(body), why)


KEPT_S = 300.0
"""`etcd-compaction-interval` of a kube-apiserver."""

encode = msgspec.json.Encoder().encode

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"


class ObjectVersion:
    """One version of one object, and its bytes, made when first asked for."""

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
        """What a watcher with this selector should be told, if anything."""
        was = self.before is not None and match(self.before.body)
        fits = match(self.after.body)
        if self.verb == DELETED:
            return DELETED if was or fits else None
        if was and fits:
            return MODIFIED
        return ADDED if fits else DELETED if was else None

    def visible_body(self, verb: str) -> Body:
        """An object that stopped matching is shown as it last matched, at the revision of the
        change.
        """
        if verb == DELETED != self.verb and self.before is not None:
            return with_meta(self.before.body, resourceVersion=str(self.revision))
        return self.after.body

    def line(self, verb: str) -> bytes:
        if verb not in self._lines:
            body = self.visible_body(verb)
            self._lines[verb] = watch_line(
                verb, self.after.encoded_body if body is self.after.body else encode(body)
            )
        return self._lines[verb]


class WatchCache:
    """Changes are forgotten when they are older than `KEPT_S`, as etcd is compacted, or too
    many.
    """

    def __init__(self, since: int, length: int) -> None:
        self.floor = since  # changes up to and including this revision are forgotten
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
        told, self.news = self.news, asyncio.Event()
        told.set()

    def after(self, revision: int) -> list[Change]:
        """Every change later than this revision; raises Expired if some are forgotten."""
        if revision < self.floor:
            raise expired_error(revision, self.floor)
        if not self.changes or self.changes[-1].revision <= revision:
            return []
        start = bisect_right(self.changes, revision, key=lambda change: change.revision)
        return (
            [self.changes[index] for index in range(start, len(self.changes))]
            if start
            else list(self.changes)
        )
