"""A Kubernetes that somebody names: Weir is deployed there, tried, and taken away with all that the
tests made.

Only `make test-cluster KUBECONFIG=FILE` collects the story. It changes the cluster, so it refuses
one that has Weir. Settings, all optional: `WEIR_IMAGE` and `WEIR_TRAINER_IMAGE` instead of the
overlay's; `OVERLAY` (dev).

`WEIR_TEST_DEPLOYED=1`: Weir is there already, at `WEIR_NATS_URL` with `WEIR_NATS_CREDENTIALS`;
nothing is deployed, nor taken away but what the tests made. So they run on `weir up`, too, with a
kubeconfig that names its API and no user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.deployed import deployed, job_namespace, stranger_image

collect_ignore_glob = [] if os.environ.get("WEIR_TEST_CLUSTER") else ["test_story.py"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Every way out of here is tried, whichever of the others fails."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as leaving:
        there = Cluster(folder, stranger_image(), job_namespace(), dict(os.environ))
        if not os.environ.get("WEIR_TEST_DEPLOYED"):
            deployed(there, folder, leaving)
        leaving.callback(there.open_again)
        leaving.callback(there.send_away)
        leaving.callback(there.cancel_all)
        yield there


@pytest.fixture(scope="session")
def digits() -> Path:
    return Path(__file__).parents[2] / "deploy" / "jobs" / "digits.py"
