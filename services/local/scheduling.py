"""The scheduler's hands: hears pods and nodes from the store, asks `scheduler.choose`, binds or
says why not.

What the pods hold is kept up pod by pod (`Ledger`), so that one more pod costs one more sum and not
five thousand.
"""

import asyncio

from services.local.happenings import NORMAL, WARNING
from services.local.journal import DELETED, Change
from services.local.objects.bodies import (
    Body,
    condition,
    is_leaving,
    is_over,
    name_of,
    namespace_of,
    node_of,
    spec,
    uid_of,
    with_condition,
    with_spec,
)
from services.local.objects.kinds import NODE, POD
from services.local.objects.pod_rules import gates_of
from services.local.objects.quantities import Amounts, minus, plus
from services.local.objects.requests import pod_requests
from services.local.scheduler import Choice, Room, choose, place, room_of, wish_of
from services.local.store import Store
from services.local.telling import tell

NAME = "default-scheduler"
GATHER_S = 0.005  # pods created in one go are placed in one go


class Ledger:
    """What the pods on each node hold, and which pods wait for one."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, Amounts]] = {}  # by pod uid
        self.used: dict[str, Amounts] = {}  # by node
        self.waiting: dict[str, tuple[str, str]] = {}  # namespace and name by pod uid

    def take(self, change: Change) -> None:
        pod, uid = change.after.body, uid_of(change.after.body)
        node, before = self.held.pop(uid, ("", {}))
        if node:
            self.used[node] = minus(self.used[node], before)
        self.waiting.pop(uid, None)
        if change.verb == DELETED or is_over(pod):
            return
        if node_of(pod):
            self.hold(uid, node_of(pod), pod_requests(pod))
        elif spec(pod).get("schedulerName") == NAME and not gates_of(pod) and not is_leaving(pod):
            self.waiting[uid] = (namespace_of(pod), name_of(pod))

    def hold(self, uid: str, node: str, requests: Amounts) -> None:
        self.held[uid] = (node, requests)
        self.used[node] = plus(self.used.get(node, {}), requests)


class Scheduling:
    def __init__(self, store: Store) -> None:
        self.store, self.ledger = store, Ledger()
        self.position = store.revision

    async def run(self) -> None:
        while True:
            pods, nodes = self.store.journal(POD).news, self.store.journal(NODE).news
            self.round()
            told = [asyncio.ensure_future(news.wait()) for news in (pods, nodes)]
            await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            for waiting in told:
                waiting.cancel()
            await asyncio.sleep(GATHER_S)

    def round(self) -> None:
        """1 remember what happened, 2 look at the nodes, 3 place every pod that waits."""
        self.catch_up()
        if not self.ledger.waiting:
            return
        rooms = {
            name_of(n): room_of(n, self.ledger.used.get(name_of(n), {}))
            for n in self.store.bodies(NODE)
        }
        hopeless: dict[str, Choice] = {}  # by likeness: what does not fit once does not fit twice
        for namespace, name in list(self.ledger.waiting.values()):
            pod = self.store.find(POD, namespace, name)
            if pod is not None and not node_of(pod):
                self.settle(pod, rooms, hopeless)
        self.catch_up()

    def catch_up(self) -> None:
        seen = self.store.revision
        for change in self.store.journal(POD).after(self.position):
            self.ledger.take(change)
        self.position = seen

    def settle(self, pod: Body, rooms: dict[str, Room], hopeless: dict[str, Choice]) -> None:
        wish = wish_of(pod)
        likeness = wish.likeness()
        choice = hopeless.get(likeness) or choose(wish, list(rooms.values()))
        if choice.node:
            rooms[choice.node] = place(rooms[choice.node], wish.requests)
            self.bind(pod, choice.node)
        else:
            hopeless[likeness] = choice
            self.refuse(pod, choice.why_not)

    def bind(self, pod: Body, node: str) -> None:
        self.store.update(POD, bound(pod, node, self.store.now()))
        message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
        tell(self.store, pod, NAME, NORMAL, "Scheduled", message)

    def refuse(self, pod: Body, why: str) -> None:
        if (condition(pod, "PodScheduled") or {}).get("message") == why:
            return
        self.store.update(
            POD,
            with_condition(pod, self.store.now(), "PodScheduled", "False", "Unschedulable", why),
        )
        tell(self.store, pod, NAME, WARNING, "FailedScheduling", why)


def bound(pod: Body, node: str, now: str) -> Body:
    return with_condition(with_spec(pod, nodeName=node), now, "PodScheduled", "True")
