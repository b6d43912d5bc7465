"""Pod Security's standard `restricted` (and `baseline` below it), rule by rule: a pod's spec -> what it violates.

After https://kubernetes.io/docs/concepts/security/pod-security-standards/ for Linux pods; each rule stands under the
standard's own heading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Body = dict[str, Any]
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
APPARMOR = {None, "RuntimeDefault", "Localhost"}
SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def violations(spec: Body) -> list[str]:
    """Empty for a pod that `restricted` admits."""
    return [
        *_of_pod(spec),
        *(f"{c['name']}: {why}" for c in containers(spec) for why in _of_container(c, _context(spec))),
    ]


def containers(spec: Body) -> list[Body]:
    return [c for field in ("initContainers", "containers", "ephemeralContainers") for c in spec.get(field) or []]


def _context(part: Body) -> Body:
    return part.get("securityContext") or {}


def _of_pod(spec: Body) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"Host Namespaces: {field}"
    for volume in spec.get("volumes") or []:
        for kind in set(volume) - {"name"} - VOLUMES:
            yield f"Volume Types: {volume['name']} is a {kind}"
    for sysctl in _context(spec).get("sysctls") or []:
        if sysctl["name"] not in SYSCTLS:
            yield f"Sysctls: {sysctl['name']}"
    yield from _of_context(_context(spec))


def _of_context(context: Body) -> Iterator[str]:
    """What holds for a pod's and for a container's."""
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield "HostProcess"
    if (context.get("appArmorProfile") or {}).get("type") not in APPARMOR:
        yield "AppArmor"
    options = context.get("seLinuxOptions") or {}
    if options.get("type") not in SELINUX or options.get("user") or options.get("role"):
        yield "SELinux"
    if context.get("runAsUser") == 0:
        yield "Running as Non-root user"
    if context.get("runAsNonRoot") is False:
        yield "Running as Non-root"
    if (context.get("seccompProfile") or {}).get("type") not in (None, "RuntimeDefault", "Localhost"):
        yield "Seccomp"


def _of_container(container: Body, pod: Body) -> Iterator[str]:
    """`pod`: its security context, which stands for what the container's own does not say."""
    own = _context(container)
    yield from _of_context(own)
    if own.get("privileged"):
        yield "Privileged Containers"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield "Host Ports"
    if own.get("procMount") not in (None, "Default"):
        yield "/proc Mount Type"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "Privilege Escalation"
    if not (own.get("runAsNonRoot") or pod.get("runAsNonRoot")):
        yield "Running as Non-root"
    if not (own.get("seccompProfile") or pod.get("seccompProfile")):
        yield "Seccomp"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []) or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield "Capabilities"
    yield from _hosts(container)


def _hosts(container: Body) -> Iterator[str]:
    """No probe and no hook may be sent anywhere but to the pod."""
    hooks = (container.get("lifecycle") or {}).values()
    for probe in [*(container.get(name) or {} for name in PROBES), *hooks]:
        if any((probe.get(how) or {}).get("host") for how in ("httpGet", "tcpSocket")):
            yield "Host Probes / Lifecycle Hooks"
