"""The tenants of the cluster file: pods of somebody else that come and go. `due` decides, `Tenancy`
does.
"""

import asyncio
from collections.abc import Sequence

from services.local.controllers import identified
from services.local.node_spec import TenantSpec
from services.local.objects.bodies import Body, with_meta
from services.local.objects.kinds import NAMESPACE, POD
from services.local.objects.pod_rules import new_pod
from services.local.store import Deletion, Store

HOME = "tenants"  # their namespace
LOOK_S = 0.1
GRACE_S = 2


def due(tenants: Sequence[TenantSpec], elapsed_s: float) -> set[int]:
    """Which of them should be there now, by their place in the file."""
    return {
        index
        for index, t in enumerate(tenants)
        if t.from_s <= elapsed_s and (t.to_s is None or elapsed_s < t.to_s)
    }


def pod_name(index: int) -> str:
    return f"tenant-{index + 1}"


def pod_spec(tenant: TenantSpec) -> Body:
    cpu = {"cpu": f"{round(tenant.cpu * 1000)}m"}
    command = ["python", "-m", "services.local.tenant", "--cpu", f"{tenant.cpu:g}"]
    container = {
        "name": "tenant",
        "image": "tenant",
        "command": command,
        "resources": {"requests": cpu, "limits": cpu},
    }
    return {
        "containers": [container],
        "nodeSelector": {"kubernetes.io/hostname": tenant.node},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
    }


class Tenancy:
    def __init__(self, store: Store, tenants: Sequence[TenantSpec]) -> None:
        self.store, self.tenants = store, tenants
        self.present: set[int] = set()

    async def run(self) -> None:
        if not self.tenants:
            return
        self.store.create(
            NAMESPACE, identified(self.store, NAMESPACE, HOME, spec={}, status={"phase": "Active"})
        )
        start = asyncio.get_running_loop().time()
        while True:
            self.settle(due(self.tenants, asyncio.get_running_loop().time() - start))
            await asyncio.sleep(LOOK_S)

    def settle(self, wanted: set[int]) -> None:
        for index in sorted(wanted - self.present):
            self.come(index)
        for index in sorted(self.present - wanted):
            if self.store.find(POD, HOME, pod_name(index)) is not None:
                self.store.delete(POD, HOME, pod_name(index), Deletion())
        self.present = wanted

    def come(self, index: int) -> None:
        body = identified(
            self.store, POD, pod_name(index), HOME, spec=pod_spec(self.tenants[index])
        )
        self.store.create(POD, new_pod(with_meta(body, generation=1, labels={"app": "tenant"})))
