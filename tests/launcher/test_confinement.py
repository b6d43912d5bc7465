"""What a trainer's pod may do, by the rules of Pod Security `restricted`, and what we ask of it
besides.
"""

from __future__ import annotations

from typing import Any

import pytest

from services.launcher.settings import Settings
from shared.messages import Resources, Volume
from shared.runtime import config
from tests.deploy.restricted import violations
from tests.launcher.builders import request
from tests.launcher.test_pods import container, env, made

CLAIM = Volume(name="data", mount_path="/data", claim="examples")


@pytest.mark.parametrize("word", ["c0", "p1", "w3"])
@pytest.mark.parametrize(
    "settings", [{}, {"run_as_user": 1000, "checkpoint_claim": "shared", "home": ""}], ids=str
)
def test_a_pod_of_every_role_is_restricted(word: str, settings: dict[str, Any]) -> None:
    wanted = request(volumes=(CLAIM,), image="theirs:2")
    assert (
        violations(made(word, wanted, Resources(cpu=1, memory_gib=1, gpu=1), **settings)["spec"])
        == []
    )


def test_a_folder_of_the_node_is_not() -> None:
    wanted = request(volumes=(Volume(name="data", mount_path="/data", host_path="/srv"),))
    assert violations(made(wanted=wanted)["spec"]) == ["volume data: hostPath"]


def test_its_root_can_only_be_read_and_tmp_is_its_own_and_limited() -> None:
    pod = made(tmp_gib=0.5)
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "weir-tmp", "mountPath": "/tmp"} in container(pod)["volumeMounts"]
    assert {"name": "weir-tmp", "emptyDir": {"sizeLimit": "512Mi"}} in pod["spec"]["volumes"]
    assert env(pod)["HOME"] == "/tmp" and "HOME" not in env(made(home=""))


def test_it_has_no_token_of_the_api() -> None:
    assert made()["spec"]["automountServiceAccountToken"] is False


def test_its_group_is_not_that_of_root_and_its_priority_is_as_the_settings_say() -> None:
    assert made()["spec"]["securityContext"]["runAsGroup"] == 65532
    assert (
        made(run_as_user=1000, run_as_group=1000)["spec"]["securityContext"]["runAsGroup"] == 1000
    )
    with pytest.raises(config.BadSettings, match="RUN_AS_GROUP"):
        config.load_settings(Settings, "launcher", {"WEIR_LAUNCHER_RUN_AS_GROUP": "0"})
    assert "priorityClassName" not in made()["spec"]
    assert made(priority_class="weir-jobs")["spec"]["priorityClassName"] == "weir-jobs"


def test_who_it_runs_as_is_the_images_affair_or_the_settings_but_never_root() -> None:
    def loaded(user: str) -> Settings:
        return config.load_settings(Settings, "launcher", {"WEIR_LAUNCHER_RUN_AS_USER": user})

    assert "runAsUser" not in made()["spec"]["securityContext"]
    assert (
        made(run_as_user=loaded("1000").run_as_user)["spec"]["securityContext"]["runAsUser"] == 1000
    )
    with pytest.raises(config.BadSettings, match="RUN_AS_USER"):
        loaded("0")
