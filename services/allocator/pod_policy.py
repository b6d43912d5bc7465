"""The policy of the cluster's owner: the things that the pods of each namespace may use.

Law: the default denies. A list that neither the namespace's section nor the default section has is
empty. A name is allowed if a list has it, or a beginning of it that ends with `*`.

`node_pools` is a bound, too: if a namespace has any, all its tasks go to nodes of these pools. The
settings of the allocator go on working beside the file (`admission/pod_settings.py` combines them):
images of either are allowed, and the lower one of two highest priorities holds. Without a file a
job may use any claim, and none of the rest.

`admission/pod_policy_file.py` reads the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.messages import (
    Cores,
    Devices,
    LabelMap,
    Namespace,
    NodeRequirement,
    NodeTerm,
    Priority,
    Toleration,
)

NamePattern = Annotated[str, Meta(min_length=1, max_length=317)]
Patterns = tuple[NamePattern, ...]


class LargestTask(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The most that a request may want for one task; None: no limit."""

    cpu: Cores | None = None
    memory_gib: Cores | None = None
    gpu: Devices | None = None


class PodRules(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The section of one namespace, or the default section. None: as in the default section, and
    nothing there.

    `images`: as in WEIR_ALLOCATOR_IMAGES. `labels`, `annotations`: keys. `node_pools`: the labels
    of the nodes of each pool; `{}`: every node.
    """

    images: Patterns | None = None
    claims: Patterns | None = None
    secrets: Patterns | None = None
    config_maps: Patterns | None = None
    service_accounts: Patterns | None = None
    image_pull_secrets: Patterns | None = None
    priority_classes: Patterns | None = None
    labels: Patterns | None = None
    annotations: Patterns | None = None
    node_pools: tuple[LabelMap, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    largest_task: LargestTask | None = None
    highest_priority: Priority | None = None


class PodPolicy(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The whole file. `is_file`: False if the cluster has none."""

    default: PodRules = PodRules()
    namespaces: dict[Namespace, PodRules] = {}
    is_file: bool = True

    def rules_of(self, namespace: str) -> PodRules:
        """Return the rules of a namespace: those of its section, the others by default."""
        own = self.namespaces.get(namespace)
        if own is None:
            return self.default
        merged = {}
        for name in PodRules.__struct_fields__:
            value = getattr(own, name)
            merged[name] = getattr(self.default, name) if value is None else value
        return PodRules(**merged)

    def pool_terms(self, namespace: str) -> tuple[NodeTerm, ...]:
        """Return the node terms of a namespace: a node has to fulfil one of them. No terms: every
        node may be used, as without pools or with a pool `{}`, which has no labels.
        """
        pools = self.rules_of(namespace).node_pools or ()
        if {} in pools:
            return ()
        return tuple([term_of_labels(pool) for pool in pools])


ANYTHING = ("*",)
ALLOW_ALL = PodPolicy(
    default=PodRules(
        claims=ANYTHING,
        secrets=ANYTHING,
        config_maps=ANYTHING,
        service_accounts=ANYTHING,
        image_pull_secrets=ANYTHING,
        priority_classes=ANYTHING,
        labels=ANYTHING,
        annotations=ANYTHING,
        node_pools=({},),
        tolerations=(Toleration(operator="Exists"),),
    ),
    is_file=False,
)
"""The policy of a cluster that allows everything that a policy can allow."""
WITHOUT_FILE = PodPolicy(default=PodRules(claims=ANYTHING), is_file=False)


def is_listed(name: str, patterns: Iterable[str] | None) -> bool:
    """Return True if one of the patterns is this name, or a beginning of it with `*` at its end."""
    for pattern in patterns or ():
        if pattern.endswith("*") and name.startswith(pattern[:-1]):
            return True
        if name == pattern:
            return True
    return False


def covers(allowed: Toleration, wanted: Toleration) -> bool:
    """Return True if every taint that `wanted` tolerates is tolerated by `allowed`, too."""
    if allowed.effect not in ("", wanted.effect):
        return False
    if not allowed.key:
        return allowed.operator == "Exists"
    if allowed.key != wanted.key:
        return False
    if allowed.operator == "Exists":
        return True
    return wanted.operator == "Equal" and wanted.value == allowed.value


def term_of_labels(labels: LabelMap) -> NodeTerm:
    """Return the term of the nodes that have all these labels."""
    return NodeTerm(
        labels=tuple(
            [
                NodeRequirement(key=key, operator="In", values=(value,))
                for key, value in labels.items()
            ]
        )
    )
