"""Who goes when somebody else has gone. Pure: bodies in, verdicts out.

Owned:     an object whose owners are all gone, goes. Deleting a job's Service so removes the job's pods.
Orphaned:  when the owner is deleted with `orphan`, its name is struck from what it owned, and that stays.
Namespace: what is in a namespace that is being deleted, goes; when it is empty, so does the namespace.
Node:      pods on a node that no longer exists are taken away by force.
"""

from collections.abc import Callable

from services.local.objects.bodies import Body, meta, with_meta
from services.local.objects.kinds import BY_NAME


def owners_of(body: Body) -> list[Body]:
    return meta(body).get("ownerReferences") or []


def is_owned_by(body: Body, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in owners_of(body))


def is_garbage(body: Body, is_alive: Callable[[str], bool]) -> bool:
    """Every owner is gone. An owner of a kind that is not served here is given the benefit of the
    doubt.
    """
    owners = owners_of(body)
    known = all(
        (str(owner.get("apiVersion")), str(owner.get("kind"))) in BY_NAME for owner in owners
    )
    return bool(owners) and known and not any(is_alive(str(owner.get("uid"))) for owner in owners)


def orphaned(body: Body, uid: str) -> Body:
    return with_meta(
        body, ownerReferences=[o for o in owners_of(body) if o.get("uid") != uid] or None
    )
