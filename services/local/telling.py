"""Telling people: the system's own events. One that cannot be written (its namespace is going) is
dropped.
"""

import contextlib

from services.local.happenings import event_about
from services.local.objects.bodies import Body
from services.local.objects.kinds import EVENT
from services.local.objects.refusals import Refusal
from services.local.store import Store


def tell(store: Store, about: Body, component: str, kind: str, reason: str, message: str) -> None:
    with contextlib.suppress(Refusal):
        store.create(
            EVENT, event_about(about, component, kind, reason, message, store.now(), store.uids())
        )
