"""The three ways to change an object by halves.

JSON patch (RFC 6902):   a list of operations on paths; a `test` that fails refuses the whole.
Merge patch (RFC 7386):  objects are merged, null removes a key, lists are replaced.
Strategic merge patch:   as merge patch, but the lists below are merged item by item on their key, as the Go
                         types declare it (`patchMergeKey`). Lists that they declare atomic, such as
                         tolerations and taints, are replaced. `$patch: delete|replace`,
                         `$retainKeys`, `$deleteFromPrimitiveList/x` are honoured.
All of them give a new document and leave the old one as it was.
"""

import copy
from typing import Any

from services.local.objects.api_errors import ApiError, bad_request
from services.local.objects.bodies import Body

MERGE_KEYS = {
    "conditions": ("type",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "resizePolicy": ("resourceName",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "hostAliases": ("ip",),
    "podIPs": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
}
PRIMITIVE_SETS = ("finalizers", "podCIDRs")
DELETE_FROM = "$deleteFromPrimitiveList/"
ORDER = "$setElementOrder/"


def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if retained is not None:
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        merge_field(result, key, value)
    return result


def merge_field(result: Body, key: str, value: Any) -> None:
    if key.startswith(DELETE_FROM):
        field = key.removeprefix(DELETE_FROM)
        result[field] = [item for item in result.get(field) or [] if item not in value]
    elif key.startswith("$"):
        return
    elif value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
        result.pop(key, None)
    elif isinstance(value, list):
        result[key] = merge_list(key, result.get(key) or [], value)
    else:
        result[key] = strategic_merge(result.get(key), value)


def merge_list(field: str, old: list[Any], new: list[Any]) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in new):
        return [item for item in new if item.get("$patch") != "replace"]
    if field in PRIMITIVE_SETS:
        return [*old, *(item for item in new if item not in old)]
    key = next(
        (
            k
            for k in MERGE_KEYS.get(field, ())
            if all(isinstance(i, dict) and k in i for i in [*old, *new])
        ),
        None,
    )
    return new if key is None else merge_keyed(key, old, new)


def merge_keyed(key: str, old: list[Body], new: list[Body]) -> list[Body]:
    items = {item[key]: item for item in old}
    for item in new:
        if item.get("$patch") == "delete":
            items.pop(item[key], None)
        else:
            items[item[key]] = strategic_merge(items.get(item[key]), item)
    return list(items.values())


def pointer_steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise bad_request(f"invalid JSON pointer: {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def missing_path(path: str) -> ApiError:
    return ApiError(
        422,
        "Invalid",
        f"the server rejected our request due to an error in our request: no such path {path!r}",
    )


def index_of(steps: list[Any], step: str, path: str, room: int) -> int:
    if not step.isdigit() or int(step) >= len(steps) + room:
        raise missing_path(path)
    return int(step)


def value_at(document: Any, path: str) -> Any:
    for step in pointer_steps(path):
        if isinstance(document, list):
            document = document[index_of(document, step, path, 0)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise missing_path(path)
    return document


def put_value(document: Any, path: str, value: Any, grow: bool) -> Any:
    """`grow`: the operation adds (a list gets longer); otherwise it replaces what must be there."""
    steps = pointer_steps(path)
    if not steps:
        return value
    parent = value_at(document, path.rpartition("/")[0])
    if isinstance(parent, list):
        at = (
            len(parent)
            if steps[-1] == "-" and grow
            else index_of(parent, steps[-1], path, int(grow))
        )
        parent[at : at + (not grow)] = [value]
    elif isinstance(parent, dict) and (grow or steps[-1] in parent):
        parent[steps[-1]] = value
    else:
        raise missing_path(path)
    return document


def take_value(document: Any, path: str) -> Any:
    parent, step = value_at(document, path.rpartition("/")[0]), pointer_steps(path)[-1]
    value = value_at(document, path)
    del parent[int(step) if isinstance(parent, list) else step]
    return value


def apply_operation(document: Any, operation: Body) -> Any:
    kind, path = operation.get("op"), str(operation.get("path", ""))
    if kind in ("add", "replace"):
        return put_value(document, path, copy.deepcopy(operation.get("value")), grow=kind == "add")
    if kind == "remove":
        take_value(document, path)
        return document
    if kind in ("copy", "move"):
        source = str(operation.get("from", ""))
        value = (
            take_value(document, source)
            if kind == "move"
            else copy.deepcopy(value_at(document, source))
        )
        return put_value(document, path, value, grow=True)
    if kind == "test":
        if value_at(document, path) != operation.get("value"):
            raise ApiError(
                422, "Invalid", f"the server rejected our request: test of {path!r} failed"
            )
        return document
    raise bad_request(f"unexpected kind of operation: {kind!r}")


def json_patch(document: Any, operations: list[Body]) -> Any:
    result = copy.deepcopy(document)
    for operation in operations:
        result = apply_operation(result, operation)
    return result
