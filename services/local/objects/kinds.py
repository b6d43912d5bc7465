"""The kinds that are served: their names, and the fields that a field selector may name."""

import msgspec

POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    plural: str
    group: str = ""
    version: str = "v1"
    short: tuple[str, ...] = ()
    namespaced: bool = True
    has_status: bool = False  # has a status subresource
    fields: tuple[str, ...] = ()  # selectable, besides metadata.name and metadata.namespace
    subresources: tuple[str, ...] = ()
    returns_deleted: bool = False  # a DELETE answers the object, not a Status

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_as(self) -> str:
        """Return the name under which the store keeps the kind: one for both versions of events."""
        return self.plural if self.group in ("", "events.k8s.io") else f"{self.plural}.{self.group}"


NAMESPACE = Kind(
    name="Namespace",
    plural="namespaces",
    short=("ns",),
    namespaced=False,
    has_status=True,
    fields=("status.phase",),
    subresources=("finalize",),
)
NODE = Kind(
    name="Node",
    plural="nodes",
    short=("no",),
    namespaced=False,
    has_status=True,
    fields=("spec.unschedulable",),
)
POD = Kind(
    name="Pod",
    plural="pods",
    short=("po",),
    has_status=True,
    fields=POD_FIELDS,
    returns_deleted=True,
    subresources=("binding", "eviction", "log", "resize"),
)
EVENT = Kind(name="Event", plural="events", short=("ev",), fields=EVENT_FIELDS)
NEW_EVENT = Kind(
    name="Event",
    plural="events",
    group="events.k8s.io",
    short=("ev",),
    fields=(
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "reason",
        "reportingController",
        "type",
    ),
)
SERVICE = Kind(
    name="Service",
    plural="services",
    short=("svc",),
    has_status=True,
    returns_deleted=True,
    fields=("spec.clusterIP", "spec.type"),
)
ACCOUNT = Kind(name="ServiceAccount", plural="serviceaccounts", short=("sa",), returns_deleted=True)
QUOTA = Kind(
    name="ResourceQuota",
    plural="resourcequotas",
    short=("quota",),
    has_status=True,
    returns_deleted=True,
)
LEASE = Kind(name="Lease", plural="leases", group="coordination.k8s.io")

KINDS = (
    NAMESPACE,
    NODE,
    POD,
    EVENT,
    NEW_EVENT,
    SERVICE,
    ACCOUNT,
    LEASE,
    Kind(name="ConfigMap", plural="configmaps", short=("cm",)),
    Kind(name="Secret", plural="secrets", fields=("type",)),
    Kind(name="Endpoints", plural="endpoints", short=("ep",)),
    Kind(
        name="PersistentVolumeClaim",
        plural="persistentvolumeclaims",
        short=("pvc",),
        has_status=True,
        returns_deleted=True,
    ),
    Kind(
        name="PersistentVolume",
        plural="persistentvolumes",
        short=("pv",),
        namespaced=False,
        has_status=True,
        returns_deleted=True,
    ),
    QUOTA,
    Kind(name="LimitRange", plural="limitranges", short=("limits",)),
    Kind(name="EndpointSlice", plural="endpointslices", group="discovery.k8s.io"),
    Kind(
        name="NetworkPolicy", plural="networkpolicies", group="networking.k8s.io", short=("netpol",)
    ),
    Kind(
        name="PriorityClass",
        plural="priorityclasses",
        group="scheduling.k8s.io",
        short=("pc",),
        namespaced=False,
    ),
    Kind(
        name="PodDisruptionBudget",
        plural="poddisruptionbudgets",
        group="policy",
        short=("pdb",),
        has_status=True,
    ),
)
BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
BY_NAME = {(kind.api_version, kind.name): kind for kind in KINDS}
