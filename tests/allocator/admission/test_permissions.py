"""Tests of the permissions of a request: namespaces, images, host paths and privileges.

A refusal lists every reason.
"""

from __future__ import annotations

import msgspec
import pytest

from services.allocator.admission.validation import InvalidRequest, check_request, reasons_against
from services.allocator.settings import Rules
from shared.runtime import config
from tests.allocator.builders import request

GOOD = msgspec.to_builtins(request())
STRICT = Rules(
    job_namespaces=("team-a", "team-b"),
    images=("registry.example/ml/", "trainer"),
    host_paths=("/data",),
)


def reasons(rules: Rules = STRICT, **changed: object) -> tuple[str, ...]:
    fields = {**GOOD, "namespace": "team-a", **changed}
    checked = check_request(msgspec.json.encode(fields), rules)
    return checked.reasons if isinstance(checked, InvalidRequest) else ()


def mounted(path: str, rules: Rules = STRICT) -> tuple[str, ...]:
    return reasons(rules, volumes=[{"name": "data", "mount_path": "/data", "host_path": path}])


def test_a_job_runs_where_jobs_may_run():
    assert reasons() == reasons(namespace="team-b") == ()
    why = "namespace: jobs may not run in 'kube-system'; allowed are team-a, team-b"
    assert reasons(namespace="kube-system") == (why,)
    assert reasons(Rules(), namespace="kube-system") == ()


def test_a_request_without_a_namespace_is_checked_for_the_default_one():
    bare = msgspec.json.encode({name: value for name, value in GOOD.items() if name != "namespace"})
    wrong = check_request(bare, STRICT)
    assert isinstance(wrong, InvalidRequest) and wrong.reasons[0].startswith(
        "namespace: jobs may not run in 'default'"
    )


@pytest.mark.parametrize(
    "image",
    [
        "registry.example/ml/net:1",
        "registry.example/ml/a/b@sha256:00",
        "trainer",
        "trainer:2",
        "trainer@sha256:0",
    ],
)
def test_images_are_allowed_by_prefix_or_with_any_tag(image: str):
    assert reasons(image=image) == ()


@pytest.mark.parametrize(
    "image",
    [
        "registry.example/mlx/net",
        "registry.example",
        "trainer-evil:1",
        "trainer/evil",
        "trainer:5000/evil",
        "x/trainer",
        "",
    ],
)
def test_other_images_are_refused(image: str):
    allowed = "WEIR_ALLOCATOR_IMAGES allows registry.example/ml/, trainer"
    assert reasons(image=image) == (f"image: {image!r} is not allowed; {allowed}",)
    assert reasons(Rules(images=()), image=image) == ()


def test_by_default_only_the_shipped_image_is_allowed():
    """The code of another image could read the credentials of its job."""
    assert reasons(Rules(), image="weir-trainer:0.1.0") == ()
    for image in ("other:1", "registry.example/weir-trainer:1", "weir-trainer-evil"):
        why = f"image: {image!r} is not allowed; WEIR_ALLOCATOR_IMAGES allows weir-trainer"
        assert reasons(Rules(), image=image) == (why,)


@pytest.mark.parametrize("path", ["/data", "/data/", "/data/a/b"])
def test_configured_host_paths_are_allowed(path: str):
    assert mounted(path) == () == mounted(path, Rules(host_paths=("/",)))


def test_other_host_paths_are_refused():
    assert mounted("/database") == (
        (
            "volumes[0].host_path: '/database' is not below a folder of the node that is allowed:"
            " /data"
        ),
    )
    assert mounted("/data", Rules()) == (
        (
            "volumes[0].host_path: '/data' is a folder of the node, and this cluster allows none;"
            " use a `claim`"
        ),
    )
    for path in ("/data/../etc", "data", "/data/.."):
        assert mounted(path) == (
            f"volumes[0].host_path: {path!r} is not an absolute path without `..`",
        )


def test_a_claim_of_the_namespace_may_be_mounted():
    assert reasons(volumes=[{"name": "data", "mount_path": "/data", "claim": "examples"}]) == ()


@pytest.mark.parametrize(
    "field",
    [
        "privileged",
        "security_context",
        "securityContext",
        "hostNetwork",
        "automountServiceAccountToken",
    ],
)
def test_privileges_are_refused(field: str):
    assert reasons(**{field: True}) == (f"{field}: not allowed: a job's pods get no privileges",)


@pytest.mark.parametrize("source", ["emptyDir", "nfs", "projected", "hostPath", "csi"])
def test_other_volume_types_are_refused(source: str):
    found = reasons(
        volumes=[{"name": "x", "mount_path": "/x", "claim": "c", source: {"name": "nats"}}]
    )
    only = (
        "not allowed; a volume is a `claim`, a `secret`, a `config_map` or, where the cluster allows"
        " it, a `host_path`"
    )
    assert found == (f"volumes[0].{source}: {only}",)


def test_weirs_own_volumes_and_paths_cannot_be_replaced():
    volumes = [
        {"name": "weir-tmp", "mount_path": "/a", "claim": "c"},
        *(
            {"name": f"v{i}", "mount_path": path, "claim": "c"}
            for i, path in enumerate(("/", "/tmp/", "/a:ro"))
        ),
    ]
    own, *others = reasons(volumes=volumes)
    assert own == "volumes[0].name: 'weir-tmp': names that begin with weir- are reserved"
    assert [why.partition(": ")[0] for why in others] == [
        f"volumes[{i}].mount_path" for i in (1, 2, 3)
    ]


def test_every_forbidden_and_every_invalid_field_is_listed():
    found = reasons(
        namespace="kube-system",
        image="evil",
        epochs=0,
        privileged=True,
        volumes=[{"name": "root", "mount_path": "/host", "host_path": "/"}],
    )
    fields = [why.partition(":")[0] for why in found]
    assert fields == ["privileged", "epochs", "namespace", "image", "volumes[0].host_path"]


def test_a_valid_request_is_checked_for_permissions():
    assert [why.partition(":")[0] for why in reasons_against(request(image="evil"), STRICT)] == [
        "namespace",
        "image",
    ]


def test_the_allocator_reads_its_rules_from_its_settings():
    environ = {
        "WEIR_JOB_NAMESPACES": "team-a, team-b",
        "WEIR_ALLOCATOR_IMAGES": "registry.example/ml/,trainer",
        "WEIR_ALLOCATOR_HOST_PATHS": "/data",
    }
    assert config.load_settings(Rules, "allocator", environ) == STRICT
    with pytest.raises(config.BadSettings, match="WEIR_JOB_NAMESPACES='Team A'"):
        config.load_settings(Rules, "allocator", {"WEIR_JOB_NAMESPACES": "Team A"})
