"""Tests of `make images`: it builds both images under the overlays' names with a usable builder.

Each builder is a small executable that writes its arguments to a file. PATH has only its folder.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.version import VERSION
from tests.deploy.rendered import DEPLOY, Body, kustomized

MAKE = shutil.which("make") or "make"
NEEDED = ("sh", "sed", "dirname")
"""Programs that the target uses besides a builder."""
BUILDER = """#!/bin/sh
[ "$1" = info ] && exit {info}
printf '%s ' "${{0##*/}}" "$@" >> "{log}"
echo >> "{log}"
exit {build}
"""


class Machine:
    """A folder that is the whole PATH, with the builders that a test adds."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "bin", folder / "log"
        self.path.mkdir()
        for name in NEEDED:
            (self.path / name).symlink_to(shutil.which(name) or name)

    def add_builder(self, name: str, *, works: bool = True, builds: bool = True) -> None:
        file = self.path / name
        file.write_text(BUILDER.format(log=self.log, info=int(not works), build=int(not builds)))
        file.chmod(0o755)

    def make_images(self, **variables: str) -> subprocess.CompletedProcess[str]:
        words = [
            MAKE,
            "--no-print-directory",
            "images",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        environ = {"PATH": str(self.path)}
        return subprocess.run(
            words, cwd=DEPLOY.parent, env=environ, capture_output=True, text=True, timeout=60
        )

    @property
    def builds(self) -> list[list[str]]:
        """Return the arguments of each call except `info`."""
        return (
            [line.split() for line in self.log.read_text().splitlines()]
            if self.log.exists()
            else []
        )

    @property
    def names(self) -> dict[str, str]:
        """Return the name of the image that was built for each target."""
        return {
            words[words.index("--target") + 1]: words[words.index("-t") + 1]
            for words in self.builds
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def names_of_overlay(name: str) -> dict[str, str]:
    images = yaml.safe_load((DEPLOY / f"overlays/{name}/kustomization.yaml").read_text())["images"]
    named = {
        image["name"]: f"{image['newName']}:{image['newTag']}"
        for image in images
        if "newName" in image
    }
    return {"control-plane": named["weir"], "trainer": named["weir-trainer"]}


def images_of(bodies: list[Body]) -> set[str]:
    specs = [
        b["spec"]["template"]["spec"] for b in bodies if b["kind"] in ("Deployment", "StatefulSet")
    ]
    containers: list[Mapping[str, Any]] = [one for spec in specs for one in spec["containers"]]
    settings = {str(each.get("value", "")) for one in containers for each in one.get("env", ())}
    return {str(one["image"]) for one in containers} | settings


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (("docker",), "docker"),
        (("podman",), "podman"),
        (("buildah",), "buildah"),
        (("buildah", "podman", "docker"), "docker"),
        (("buildah", "podman"), "podman"),
    ],
)
def test_the_first_available_builder_builds_both_images(
    machine: Machine, there: tuple[str, ...], chosen: str
) -> None:
    for name in there:
        machine.add_builder(name)

    done = machine.make_images(REGISTRY="registry.example/team", TAG="1.2.3")

    assert done.returncode == 0, done.stderr
    assert [words[:2] for words in machine.builds] == [[chosen, "build"]] * 2
    assert machine.names == {
        "control-plane": "registry.example/team/weir:1.2.3",
        "trainer": "registry.example/team/weir-trainer:1.2.3",
    }
    assert f"{chosen} push registry.example/team/weir-trainer:1.2.3" in done.stdout


def test_a_docker_without_a_running_engine_is_skipped(machine: Machine) -> None:
    machine.add_builder("docker", works=False)
    machine.add_builder("buildah")

    assert machine.make_images().returncode == 0
    assert [words[0] for words in machine.builds] == ["buildah", "buildah"]


def test_without_a_builder_the_error_names_the_ones_to_install(machine: Machine) -> None:
    machine.add_builder("docker", works=False)

    done = machine.make_images()

    assert done.returncode != 0 and machine.builds == []
    assert "docker: installed, but `docker info` fails" in done.stderr
    assert "podman: not installed" in done.stderr and "buildah: not installed" in done.stderr
    assert "apt-get install buildah" in done.stderr


def test_a_failed_build_stops_the_script(machine: Machine) -> None:
    machine.add_builder("podman", builds=False)

    done = machine.make_images()

    assert (
        done.returncode != 0
        and len(machine.builds) == 1
        and "Both images are built" not in done.stdout
    )


@pytest.mark.parametrize(("overlay", "variables"), [("production", {}), ("dev", {"TAG": "dev"})])
def test_without_a_registry_images_have_the_names_of_the_overlay(
    machine: Machine, overlay: str, variables: Mapping[str, str]
) -> None:
    machine.add_builder("docker")

    assert machine.make_images(**variables).returncode == 0
    assert machine.names == names_of_overlay(overlay)


def test_the_printed_kustomize_lines_make_an_overlay_use_these_images(machine: Machine) -> None:
    machine.add_builder("docker")
    done = machine.make_images(REGISTRY="registry.example:5000/team/", TAG=VERSION)
    lines = "\n".join(line for line in done.stdout.splitlines() if line.startswith("  - "))

    named = images_of(kustomized(["overlays/production"], images=yaml.safe_load(lines)))

    assert set(machine.names.values()) <= named
    assert set(names_of_overlay("production").values()) & named == set()


def test_a_base_image_and_extra_arguments_are_passed_to_the_builder(machine: Machine) -> None:
    machine.add_builder("buildah")

    assert machine.make_images(BASE="mine:3.11", OPTIONS="--network host").returncode == 0
    for words in machine.builds:
        assert " --build-arg PYTHON=mine:3.11 --network host -f deploy/Dockerfile " in " ".join(
            words
        )
