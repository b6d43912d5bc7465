"""Tests of Secrets and ConfigMaps from files: their values, and every error."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from services.local.cluster_spec import (
    DataSource,
    InvalidClusterFile,
    NodeSpec,
    TaintSpec,
    data_fields,
    parse_cluster,
    parse_source,
    read_values,
    repeated_objects,
)
from services.local.objects.kinds import BY_NAME, NODE
from services.local.service import Settings, local_cluster

VARIABLES = """\
# the bucket of the team

KEY=a=b c
export REGION=eu
EMPTY=
"""


def test_an_option_names_an_object_and_a_path() -> None:
    assert parse_source("bucket=a=b.env", "Secret") == DataSource(
        kind="Secret", namespace="default", name="bucket", path=Path("a=b.env")
    )
    assert parse_source("team-a/b.c=x", "ConfigMap").option == "team-a/b.c=x"
    for wrong in ("bucket", "=x", "bucket=", "Bucket=x", "Team/a=x", "a/b/c=x"):
        with pytest.raises(ValueError):
            parse_source(wrong, "Secret")


def test_values_are_lines_of_an_env_file_files_of_a_folder_or_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "bucket.env").write_text(VARIABLES)
    assert read_values(tmp_path / "bucket.env") == {"KEY": b"a=b c", "REGION": b"eu", "EMPTY": b""}
    (tmp_path / "key.json").write_bytes(bytes([0, 255]))
    assert read_values(tmp_path / "key.json") == {"key.json": bytes([0, 255])}
    (tmp_path / "folder").mkdir()
    assert read_values(tmp_path) == {
        "bucket.env": VARIABLES.encode(),
        "key.json": bytes([0, 255]),
    }


def test_every_fault_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.env"
    file.write_text("KEY=1\nnothing\nKEY=2\n")
    with pytest.raises(ValueError) as caught:
        read_values(file)
    assert str(caught.value).splitlines() == [
        f"{file}, line 2: is not NAME=value",
        f"{file}, line 3: KEY occurs twice",
    ]
    file.write_text("A B=1\n")
    with pytest.raises(ValueError, match="'A B' cannot be a key"):
        read_values(file)
    file.with_suffix(".bin").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(ValueError, match="bytes are more than"):
        read_values(file.with_suffix(".bin"))


def test_an_object_that_is_there_twice_is_a_fault() -> None:
    sources = tuple(parse_source(text, "Secret") for text in ("a=x", "b=y", "default/a=z"))
    assert [*repeated_objects(sources)] == ["Secret default/a is given twice"]


def test_binary_values_are_encoded() -> None:
    values = {"a": b"x", "b": bytes([255])}
    encoded = base64.b64encode(bytes([255])).decode()
    secret = data_fields(parse_source("s=x", "Secret"), values)
    assert secret == {"type": "Opaque", "data": {"a": "eA==", "b": encoded}}
    plain = data_fields(parse_source("s=x", "ConfigMap"), values)
    assert plain == {"data": {"a": "x"}, "binaryData": {"b": encoded}}


async def test_a_cluster_begins_with_its_objects_and_the_marks_of_its_nodes(tmp_path: Path) -> None:
    file = tmp_path / "bucket.env"
    file.write_text("KEY=1\n")
    sources = (
        parse_source(f"team/bucket={file}", "Secret"),
        parse_source(f"sizes={file}", "ConfigMap"),
    )
    marked = NodeSpec(labels={"pool": "a"}, taints=(TaintSpec(key="team", value="a"),))
    settings = Settings(data_sources=sources)
    async with local_cluster([marked], tmp_path / "data", settings=settings) as cluster:
        secret = cluster.store.find(BY_NAME["v1", "Secret"], "team", "bucket")
        sizes = cluster.store.find(BY_NAME["v1", "ConfigMap"], "default", "sizes")
        node = cluster.store.find(NODE, "", "node")
    assert secret is not None and secret["data"] == {"KEY": "MQ=="}
    assert sizes is not None and sizes["data"] == {"KEY": "1"}
    assert node is not None and node["metadata"]["labels"]["pool"] == "a"
    assert node["spec"]["taints"] == [{"key": "team", "value": "a", "effect": "NoSchedule"}]


def test_labels_and_taints_of_a_cluster_file_are_checked() -> None:
    text = "nodes:\n  - {labels: {pool: a}, taints: [{key: team}]}\n"
    (node,) = parse_cluster(text).nodes
    assert node.labels == {"pool": "a"} and node.taints[0].effect == "NoSchedule"
    with pytest.raises(InvalidClusterFile, match=r"nodes\[0\].taints: "):
        parse_cluster("nodes:\n  - {taints: [{key: team, effect: Never}]}\n")
