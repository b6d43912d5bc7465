"""Deploy Weir on a given Kubernetes cluster for the tests, and remove it afterwards.

Only `make test-cluster KUBECONFIG=FILE` collects the story. It changes the cluster, so it refuses
one that has Weir. Settings, all optional: `WEIR_IMAGE` and `WEIR_TRAINER_IMAGE` replace the images
of the overlay; `OVERLAY` (dev).

`WEIR_TEST_DEPLOYED=1`: Weir is already deployed, at `WEIR_NATS_URL` with `WEIR_NATS_CREDENTIALS`.
Nothing is deployed, and only the objects that the tests created are removed. With this setting the
tests also run on `weir up`, with a kubeconfig that names its API and no user.
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
    """Yield the cluster. All clean-up steps run, even if some of them fail."""
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
