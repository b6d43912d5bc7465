"""Tests of the rules of `restricted`: each refuses what the standard refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.deploy.restricted import violations

Spec = dict[str, Any]

GOOD: Spec = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "containers": [
        {
            "name": "one",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}

WRONG: dict[str, tuple[str, Any]] = {
    "one: hostProcess": ("containers.0.securityContext.windowsOptions", {"hostProcess": True}),
    "pod: hostNetwork": ("hostNetwork", True),
    "pod: hostPID": ("hostPID", True),
    "pod: hostIPC": ("hostIPC", True),
    "one: privileged": ("containers.0.securityContext.privileged", True),
    "one: hostPort 80": ("containers.0.ports", [{"hostPort": 80}]),
    "one: readinessProbe names a host": (
        "containers.0.readinessProbe",
        {"tcpSocket": {"host": "10.0.0.1"}},
    ),
    "one: preStop names a host": (
        "containers.0.lifecycle",
        {"preStop": {"httpGet": {"host": "10.0.0.1"}}},
    ),
    "pod: appArmorProfile Unconfined": ("securityContext.appArmorProfile", {"type": "Unconfined"}),
    "pod: seLinuxOptions {'type': 'spc_t'}": ("securityContext.seLinuxOptions", {"type": "spc_t"}),
    "one: procMount": ("containers.0.securityContext.procMount", "Unmasked"),
    "pod: sysctl kernel.msgmax": (
        "securityContext.sysctls",
        [{"name": "kernel.msgmax", "value": "1"}],
    ),
    "volume tmp: hostPath": ("volumes.0.hostPath", {"path": "/"}),
    "one: allowPrivilegeEscalation is not false": (
        "containers.0.securityContext.allowPrivilegeEscalation",
        True,
    ),
    "one: runAsNonRoot is not true": ("securityContext.runAsNonRoot", None),
    "pod: runAsNonRoot is false": ("securityContext.runAsNonRoot", False),
    "pod: runAsUser 0": ("securityContext.runAsUser", 0),
    "one: seccompProfile None": ("securityContext.seccompProfile", {}),
    "one: capabilities: ALL is not dropped": ("containers.0.securityContext.capabilities", {}),
    "one: capabilities: SYS_ADMIN is added": (
        "containers.0.securityContext.capabilities",
        {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    ),
}


def with_(path: str, value: Any) -> Spec:
    spec = copy.deepcopy(GOOD)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    inner: Any = spec
    for step in way:
        inner = inner[step]
    inner[last] = value
    return spec


def test_a_safe_pod_is_admitted_as_restricted() -> None:
    assert violations(GOOD) == []
    assert violations(with_("containers.0.securityContext.runAsUser", 65532)) == []


@pytest.mark.parametrize("line", WRONG)
def test_each_violation_of_restricted_is_named(line: str) -> None:
    assert line in violations(with_(*WRONG[line]))


def test_init_containers_are_checked_too() -> None:
    assert violations({**GOOD, "initContainers": [{"name": "first"}]}) == [
        "first: allowPrivilegeEscalation is not false",
        "first: capabilities: ALL is not dropped",
    ]


def test_a_container_may_set_its_own_security_context() -> None:
    own = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "Localhost"},
        **GOOD["containers"][0]["securityContext"],
    }

    assert violations({"containers": [{"name": "one", "securityContext": own}]}) == []
