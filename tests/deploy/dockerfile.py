"""Runs the steps of a Dockerfile in folders of this machine, without an image builder.

Each stage has a folder that stands for its root. Files are copied into it (as links, if they come
from another stage), and commands run there with this machine's Python. A step that needs a real
root (an absolute path in a command, a package of the system) fails, so our Dockerfile has none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

TIMEOUT_S = 1200  # of one step; the slowest installs 2 GB


@dataclass
class Stage:
    """A stage of a build. `root` stands for `/`; the other fields are the image's configuration."""

    base: str
    root: Path
    workdir: PurePosixPath = PurePosixPath("/")
    environ: dict[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def here(self, path: str = "") -> Path:
        return self.root / (self.workdir / path).relative_to("/")


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction and its arguments, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        yield word, rest.strip()


class Builder:
    """Runs the steps of a Dockerfile up to a target. `images`: the base images that it uses."""

    def __init__(self, file: Path, context: Path, folder: Path) -> None:
        self.file, self.context, self.folder = file, context, folder
        self.allowed = [
            line[1:] for line in _lines(Path(f"{file}.dockerignore")) if line.startswith("!")
        ]
        self.stages: dict[str, Stage] = {}
        self.arguments: dict[str, str] = {}
        self.images: set[str] = set()
        self._one: Stage | None = None

    def build(self, target: str) -> Stage:
        """Build a target and the stages that it needs, unless they are already built; return it."""
        needed = self._needed(target) - set(self.stages)
        current = ""
        for word, rest in steps(self.file.read_text()):
            current = rest.split()[-1] if word == "FROM" else current
            if word == "ARG" or current in needed:
                getattr(self, f"_{word.lower()}")(rest)
        return self.stages[target]

    def _needed(self, target: str) -> set[str]:
        """Return the target and every stage that it needs."""
        wanted = {target}
        for word, rest in reversed(list(self._placed())):
            if rest[0] in wanted and word == "FROM":
                wanted.add(rest[1].split()[0])
            if rest[0] in wanted and rest[1].startswith("--from="):
                wanted.add(rest[1].split()[0].removeprefix("--from="))
        return wanted

    def _placed(self) -> Iterator[tuple[str, tuple[str, str]]]:
        current = ""
        for word, rest in steps(self.file.read_text()):
            current = rest.split()[-1] if word == "FROM" else current
            yield word, (current, rest)

    @property
    def stage(self) -> Stage:
        assert self._one is not None, "a step before the first FROM"
        return self._one

    # ------------------------------------------------------------ instructions

    def _arg(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.arguments[name] = value

    def _from(self, rest: str) -> None:
        base, _, name = rest.split()
        root = self.folder / name
        if base in self.stages:
            old = self.stages[base]
            shutil.copytree(old.root, root, copy_function=os.link)
            self._one = Stage(
                base, root, old.workdir, {**old.environ}, old.user, old.entrypoint, old.command
            )
        else:
            root.mkdir(parents=True)
            self.images.add(self.arguments[base[2:-1]] if base.startswith("${") else base)
            self._one = Stage(base, root)
        self.stages[name] = self._one

    def _workdir(self, rest: str) -> None:
        self.stage.workdir /= rest
        self.stage.here().mkdir(parents=True, exist_ok=True)

    def _env(self, rest: str) -> None:
        self.stage.environ |= dict(pair.split("=", 1) for pair in rest.split())

    def _user(self, rest: str) -> None:
        self.stage.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.stage.entrypoint = tuple(json.loads(rest))

    def _cmd(self, rest: str) -> None:
        self.stage.command = tuple(json.loads(rest))

    def _copy(self, rest: str) -> None:
        words = rest.split()
        if words[0].startswith("--from="):
            other = self.stages[words[0].removeprefix("--from=")]
            source, target = other.root / words[1].lstrip("/"), self.stage.here(words[2])
            shutil.copytree(source, target, copy_function=os.link)
            return
        for name in words[:-1]:
            assert name in self.allowed, f"{name} is not sent to the builder"
            self._copied(name, words[-1])

    def _copied(self, name: str, to: str) -> None:
        source = self.context / name
        if source.is_dir():
            shutil.copytree(
                source, self.stage.here(to), ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source, self.stage.here(to) / name)

    def _run(self, rest: str) -> None:
        environ = {
            **os.environ,
            **self.stage.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        subprocess.run(
            ["sh", "-c", rest], cwd=self.stage.here(), env=environ, check=True, timeout=TIMEOUT_S
        )


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
