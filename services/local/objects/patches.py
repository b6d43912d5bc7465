"""The three kinds of patches of an object.

JSON patch (RFC 6902):   a list of operations on paths; a `test` that fails refuses the whole.
Merge patch (RFC 7386):  objects are merged, null removes a key, lists are replaced.
Strategic merge patch:   as merge patch, but the lists below are merged item by item on their key, as the Go
                         types declare it (`patchMergeKey`). Lists that they declare atomic, such as
                         tolerations and taints, are replaced. `$patch: delete|replace`,
                         `$retainKeys`, `$deleteFromPrimitiveList/x` are supported.
Each of them returns a new document and does not change the old one.
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
        for key in result.keys() - set(retained):
            del result[key]
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
    if any(_directive(item) == "replace" for item in new):
        return [item for item in new if item.get("$patch") != "replace"]
    if field in PRIMITIVE_SETS:
        return [*old, *(item for item in new if item not in old)]
    items = [*old, *new]
    for key in MERGE_KEYS.get(field, ()):
        if all(isinstance(item, dict) and key in item for item in items):
            return merge_keyed(key, old, new)
    return new


def _directive(item: Any) -> Any:
    return item.get("$patch") if isinstance(item, dict) else None


def merge_keyed(key: str, old: list[Body], new: list[Body]) -> list[Body]:
    items = {item[key]: item for item in old}
    for item in new:
        name = item[key]
        if item.get("$patch") == "delete":
            items.pop(name, None)
        else:
            items[name] = strategic_merge(items.get(name), item)
    return list(items.values())


def pointer_steps(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise bad_request(f"invalid JSON pointer: {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def missing_path(path: str) -> ApiError:
    why = f"the server rejected our request due to an error in our request: no such path {path!r}"
    return ApiError(422, "Invalid", why)


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
    """Set a value. `grow`: a list gets longer; otherwise the value replaces an existing one."""
    steps = pointer_steps(path)
    if not steps:
        return value
    parent = value_at(document, path.rpartition("/")[0])
    step = steps[-1]
    if isinstance(parent, list):
        if grow and step == "-":
            parent.append(value)
        elif grow:
            parent.insert(index_of(parent, step, path, 1), value)
        else:
            parent[index_of(parent, step, path, 0)] = value
    elif isinstance(parent, dict) and (grow or step in parent):
        parent[step] = value
    else:
        raise missing_path(path)
    return document


def take_value(document: Any, path: str) -> Any:
    """Remove a value; return it."""
    parent = value_at(document, path.rpartition("/")[0])
    step = pointer_steps(path)[-1]
    value = value_at(document, path)
    del parent[int(step) if isinstance(parent, list) else step]
    return value


def apply_operation(document: Any, operation: Body) -> Any:
    kind = operation.get("op")
    path = str(operation.get("path", ""))
    source = str(operation.get("from", ""))
    if kind in ("add", "replace"):
        return put_value(document, path, copy.deepcopy(operation.get("value")), grow=kind == "add")
    if kind == "remove":
        take_value(document, path)
        return document
    if kind == "move":
        return put_value(document, path, take_value(document, source), grow=True)
    if kind == "copy":
        return put_value(document, path, copy.deepcopy(value_at(document, source)), grow=True)
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
