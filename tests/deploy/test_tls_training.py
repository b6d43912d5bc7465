"""Tests that a job trains on while its bus migrates to TLS, and counts each example once."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.trial import trial
from services.local import stack as stack_module
from services.local.stack import SERVICES, Stack
from shared.auth.permissions import SETUP
from shared.bus import bus
from shared.messages import AllocationDecided, ResumeRequested, SuspendRequested, TrainingResumed
from tests.deploy.servers import OPENSSL, Secrets
from tests.deploy.test_nats import SERVERS, WITHIN_S
from tests.deploy.test_tls_migration import STEPS, StatefulSet, certificates, statefulset
from tests.flow.stage import EPOCHS, JOB, PATIENCE_S, PLACES, QUICK, Scene

ONE = {"start": 1, "min": 1, "max": 1}

pytestmark = [pytest.mark.long, pytest.mark.skipif(OPENSSL is None, reason="no openssl here")]


class StackOnBus(Stack):
    """The services and the cluster on a bus that already runs."""

    def __init__(self, folder: Path, cluster_file: Path, servers: StatefulSet) -> None:
        super().__init__(folder, cluster_file, QUICK)
        self.servers, self.scheme = servers, "nats"

    @property
    def nats_url(self) -> str:
        """Return the address of one server.

        It advertises no others, so clients wait while it is replaced.
        """
        return f"{self.scheme}://localhost:{self.servers.clients[0]}"

    async def use_tls(self, authority: Path) -> None:
        """Restart each service with the authority's file, as `kubectl apply` does."""
        self.scheme = "tls"
        self.settings["WEIR_NATS_CA"] = str(authority)
        for name in SERVICES:
            await self._stop(name)
            await self.start(name)

    async def _start_nats(self) -> None:
        connection = await bus.connect(self.nats_url, SETUP, self.credentials_of(SETUP))
        await stack_module.create_streams(connection, SERVERS, self.namespaces, WITHIN_S)
        await connection.close()


async def test_a_job_trains_while_the_bus_migrates_to_tls(secrets: Secrets, tmp_path: Path) -> None:
    certificates(tmp_path)
    authority, cluster = tmp_path / "ca.crt", tmp_path / "cluster.yaml"
    cluster.write_text(PLACES)
    async with (
        statefulset(tmp_path, secrets) as servers,
        StackOnBus(tmp_path, cluster, servers) as stack,
    ):
        async with trial(stack) as watched:
            scene = Scene(watched, tmp_path)
            await scene.submit(grace_s=40.0, ps=ONE, workers=ONE)
            await scene.hear(TrainingResumed)
            await servers.roll_out(STEPS[0])
            await scene.goes_on()
            plain = scene.running

        await stack.use_tls(authority)
        async with trial(stack, str(authority)) as watched:
            scene = Scene(watched, tmp_path)
            await scene.hear(TrainingResumed, lambda m: m.generation == plain)
            await scene.goes_on()
            await watched.bus.request(SuspendRequested(job=JOB, request_id="1"))
            await scene.hear(AllocationDecided, lambda m: m.tasks == ())
            await watched.bus.request(ResumeRequested(job=JOB, request_id="2"))
            await scene.hear(TrainingResumed, lambda m: m.generation > plain)
            await scene.goes_on()
            knows = scene.running
            await servers.roll_out(STEPS[1])
            await scene.goes_on()
            assert scene.running == knows, "the same pods train on"
            scene.pace(0)
            over = await watched.await_finish(PATIENCE_S)
            counts = await scene.counts(over)
    assert set(counts) == {EPOCHS} and over.samples == over.counted
