"""The three kinds of patches of an object.

JSON patch (RFC 6902):   a list of operations on paths, by the library jsonpatch.
Merge patch (RFC 7386):  objects are merged, null removes a key, lists are replaced.
Strategic merge patch:   as merge patch, but the lists below are merged item by item on their key, as the Go
                         types declare it (`patchMergeKey`). Lists that they declare atomic, such as
                         tolerations and taints, are replaced. `$patch: delete|replace`,
                         `$retainKeys`, `$deleteFromPrimitiveList/x` are supported.
Each of them returns a new document and does not change the old one.
"""

from typing import Any

import jsonpatch

from services.local.objects.bodies import ApiError, Body, bad_request

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
    """Return the merged list. A list without a merge key is replaced."""
    if any(_directive(item) == "replace" for item in new):
        return [item for item in new if item.get("$patch") != "replace"]
    if field in PRIMITIVE_SETS:
        return [*old, *(item for item in new if item not in old)]
    for key in MERGE_KEYS.get(field, ()):
        if _have_key(key, old) and _have_key(key, new):
            return merge_keyed(key, old, new)
    return new


def _have_key(key: str, items: list[Any]) -> bool:
    return all(isinstance(item, dict) and key in item for item in items)


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


def json_patch(document: Any, operations: list[Body]) -> Any:
    """Return a patched copy. Raises a refusal (400 for an operation that is not valid, else
    422).
    """
    try:
        return jsonpatch.apply_patch(document, operations)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"not a JSON patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message) from error
