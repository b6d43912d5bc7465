"""A path of the API -> what it is about."""

import msgspec

from services.local.objects.kinds import BY_PATH, Kind
from services.local.objects.refusals import no_such_path


class Place(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    namespace: str = ""  # empty: all of them, or the kind has none
    name: str = ""  # empty: the collection
    sub: str = ""


def locate(path: str) -> Place:
    """Raises NotFound for a path that is not served."""
    steps = [step for step in path.split("/") if step]
    if steps[:2] == ["api", "v1"]:
        return within("", "v1", steps[2:])
    if steps[:1] == ["apis"] and len(steps) >= 4:
        return within(steps[1], steps[2], steps[3:])
    raise no_such_path()


def within(group: str, version: str, steps: list[str]) -> Place:
    inner = (
        BY_PATH.get((group, version, steps[2]))
        if steps[:1] == ["namespaces"] and len(steps) >= 3
        else None
    )
    if inner is not None:
        return checked(inner, steps[1], steps[3:]) if inner.namespaced else refuse()
    if steps[:1] == ["namespaces"] and len(steps) == 3 and steps[2] == "bindings":
        return Place(kind=BY_PATH["", "v1", "pods"], namespace=steps[1], sub="binding")
    kind = BY_PATH.get((group, version, steps[0])) if steps else None
    if kind is None or (kind.namespaced and len(steps) > 1):
        return refuse()
    return checked(kind, "", steps[1:])


def checked(kind: Kind, namespace: str, rest: list[str]) -> Place:
    name, sub = (*rest, "", "")[:2]
    known = (*kind.subresources, *(("status",) if kind.has_status else ()))
    if len(rest) > 2 or (sub and sub not in known):
        return refuse()
    return Place(kind=kind, namespace=namespace, name=name, sub=sub)


def refuse() -> Place:
    raise no_such_path()
