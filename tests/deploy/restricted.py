"""The Pod Security Standard `restricted`, for Linux pods: checks of a pod's spec.

The rules of `baseline`, on which `restricted` builds, come first. Source: the page "Pod Security
Standards" of the Kubernetes documentation, v1.37; one function for each row of its two tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Spec = Mapping[str, Any]

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HOOKS = ("postStart", "preStop")
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROFILES = {"RuntimeDefault", "Localhost"}


def violations(spec: Spec) -> list[str]:
    """Return each violation of a rule with its place in the pod; empty if the pod is admitted."""
    return [line for rule in RULES for line in rule(spec)]


def containers(spec: Spec) -> list[Spec]:
    """Return all containers of a pod, including init containers and ephemeral containers."""
    return [
        one
        for kind in ("initContainers", "containers", "ephemeralContainers")
        for one in spec.get(kind) or ()
    ]


def contexts(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield the name and the security context of the pod, then of each container."""
    yield "pod", spec.get("securityContext") or {}
    for one in containers(spec):
        yield one["name"], one.get("securityContext") or {}


# ---------------------------------------------------------------- baseline


def host_process(spec: Spec) -> Iterator[str]:
    for where, context in contexts(spec):
        if (context.get("windowsOptions") or {}).get("hostProcess"):
            yield f"{where}: hostProcess"


def host_namespaces(spec: Spec) -> Iterator[str]:
    yield from (
        f"pod: {field}" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)
    )


def privileged(spec: Spec) -> Iterator[str]:
    yield from (
        f"{where}: privileged" for where, context in contexts(spec) if context.get("privileged")
    )


def host_ports(spec: Spec) -> Iterator[str]:
    for one in containers(spec):
        yield from (
            f"{one['name']}: hostPort {p['hostPort']}"
            for p in one.get("ports") or ()
            if p.get("hostPort")
        )


def host_of_probes(spec: Spec) -> Iterator[str]:
    for one in containers(spec):
        hooks = one.get("lifecycle") or {}
        handlers = {**{p: one.get(p) for p in PROBES}, **{h: hooks.get(h) for h in HOOKS}}
        for name, handler in handlers.items():
            if any(
                ((handler or {}).get(way) or {}).get("host") for way in ("httpGet", "tcpSocket")
            ):
                yield f"{one['name']}: {name} names a host"


def app_armor(spec: Spec) -> Iterator[str]:
    for where, context in contexts(spec):
        kind = (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault")
        if kind not in PROFILES:
            yield f"{where}: appArmorProfile {kind}"


def selinux(spec: Spec) -> Iterator[str]:
    for where, context in contexts(spec):
        options = context.get("seLinuxOptions") or {}
        if (
            options.get("type", "") not in SELINUX_TYPES
            or options.get("user")
            or options.get("role")
        ):
            yield f"{where}: seLinuxOptions {dict(options)}"


def proc_mount(spec: Spec) -> Iterator[str]:
    yield from (
        f"{where}: procMount"
        for where, c in contexts(spec)
        if c.get("procMount", "Default") != "Default"
    )


def sysctls(spec: Spec) -> Iterator[str]:
    asked = (spec.get("securityContext") or {}).get("sysctls") or ()
    yield from (f"pod: sysctl {s['name']}" for s in asked if s["name"] not in SYSCTLS)


# ---------------------------------------------------------------- restricted


def volume_types(spec: Spec) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        for kind in volume.keys() - {"name"} - VOLUMES:
            yield f"volume {volume['name']}: {kind}"


def privilege_escalation(spec: Spec) -> Iterator[str]:
    for one in containers(spec):
        if (one.get("securityContext") or {}).get("allowPrivilegeEscalation") is not False:
            yield f"{one['name']}: allowPrivilegeEscalation is not false"


def non_root(spec: Spec) -> Iterator[str]:
    (_, pod), *each = contexts(spec)
    if pod.get("runAsNonRoot") is False:
        yield "pod: runAsNonRoot is false"
    for where, context in each:
        if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{where}: runAsNonRoot is not true"


def non_root_user(spec: Spec) -> Iterator[str]:
    yield from (
        f"{where}: runAsUser 0"
        for where, context in contexts(spec)
        if context.get("runAsUser") == 0
    )


def seccomp(spec: Spec) -> Iterator[str]:
    (_, pod), *each = contexts(spec)
    for where, context in [("pod", {"seccompProfile": {"type": "RuntimeDefault"}, **pod}), *each]:
        kind = (context.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
        if kind not in PROFILES:
            yield f"{where}: seccompProfile {kind}"


def capabilities(spec: Spec) -> Iterator[str]:
    for one in containers(spec):
        named = (one.get("securityContext") or {}).get("capabilities") or {}
        if "ALL" not in (named.get("drop") or ()):
            yield f"{one['name']}: capabilities: ALL is not dropped"
        for added in set(named.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield f"{one['name']}: capabilities: {added} is added"


RULES = (
    *(
        host_process,
        host_namespaces,
        privileged,
        host_ports,
        host_of_probes,
        app_armor,
        selinux,
        proc_mount,
        sysctls,
    ),
    *(volume_types, privilege_escalation, non_root, non_root_user, seccomp, capabilities),
)
