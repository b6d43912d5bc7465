"""Read a training program from a file, a folder or a zip file, as it is stored and requested.

A file is stored as it is. Of a folder or a zip file the archive of its files is stored
(`services/trainer/program_archive.py`): both have the same digest for the same files. Files that
git ignores are left out, and so are git's own files and compiled Python. A link is refused,
because the file that it leads to may lie anywhere.

The file with the program's functions is the entry of a folder or zip file. `FOLDER:ENTRY` names it;
`FOLDER` alone means `main.py`, else the only Python file at its top that has a function `model`.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from pathspec import GitIgnoreSpec

from services.console.trouble import FAILED, WRONG_USE, Trouble
from services.trainer.program import safe_file_name
from services.trainer.program_archive import (
    MOST_FILES,
    BadArchive,
    file_reasons,
    pack_files,
    read_archive,
    size_reason,
)
from shared.bus import programs
from shared.messages import LARGEST_PROGRAM
from shared.text import format_names

MIB = 1 << 20
MAIN = "main.py"
NEVER_PART = GitIgnoreSpec.from_lines([".git", "__pycache__", "__MACOSX", ".DS_Store", "*.pyc"])
"""The files of git, Python and macOS that are never part of a program."""
IGNORE_FILE = ".gitignore"
MOST_WALKED = 20_000
"""Files of a folder that are looked at before it is refused."""
MOST_NAMES = 3
RELATIVE = "`program:` is relative to the job's file"
ADVICE = "Data belongs on a volume, not in the program."
NO_ENTRY = (
    "{path} has no {main}; name the file that has model(): `{path}:FILE`. "
    "At the top level there {found}"
)


class ProgramSource(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it is stored. `path`: its file, or its folder or zip file; `name`: of the
    request; `body`: the bytes to store.

    `files`: the content of its files, by their path in the program; `entry`: the path of the one
    with the functions, and `packed`: `body` is the archive of all of them. `left_out`: files and
    folders that git ignores.
    """

    path: Path
    name: str
    body: bytes
    entry: str
    packed: bool
    files: dict[str, bytes]
    left_out: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return programs.digest_of(self.body)

    @property
    def reference(self) -> dict[str, Any]:
        """The program in a request."""
        reference = {"name": self.name, "digest": self.digest}
        return {**reference, "entry": self.entry} if self.packed else reference

    @property
    def text(self) -> bytes:
        """The content of the file with the functions."""
        return self.files[self.entry]

    def place_of(self, file: str) -> Path:
        """Return the path of one of its files, for a person."""
        return self.path / file if self.packed else self.path


def read_program(path: Path) -> ProgramSource:
    """Read a program. Raise `Trouble` if it is unreadable, too large to store, or has no entry."""
    place, entry = split_entry(path)
    try:
        if place.is_dir():
            files, left_out = _read_folder(place)
        elif place.suffix.lower() == ".zip":
            files, left_out = _read_zip(place)
        else:
            return _read_file(path)
        return _pack_program(place, files, left_out, entry)
    except BadArchive as error:
        lines = [f"the program {place}: {line}" for line in str(error).splitlines()]
        raise Trouble("\n".join(lines), FAILED) from error
    except OSError as error:
        raise Trouble(
            f"cannot read the program {error.filename or path}: {error.strerror}; {RELATIVE}",
            WRONG_USE,
        ) from error


def split_entry(path: Path) -> tuple[Path, str]:
    """Return the file, folder or zip file, and the entry that is named after a colon."""
    place, colon, entry = str(path).rpartition(":")
    if not colon or path.exists() or not place:
        return path, ""
    return Path(place), entry


def _read_file(path: Path) -> ProgramSource:
    size = path.stat().st_size
    if size > LARGEST_PROGRAM:
        raise Trouble(
            f"the program {path} has {size / MIB:.1f} MiB; at most {LARGEST_PROGRAM // MIB} MiB are"
            f" allowed. {ADVICE}",
            FAILED,
        )
    body = path.read_bytes()
    return ProgramSource(
        path=path, name=path.name, body=body, entry=path.name, packed=False, files={path.name: body}
    )


def _pack_program(
    place: Path, files: dict[str, bytes], left_out: Sequence[str], entry: str
) -> ProgramSource:
    body = pack_files(files)
    entry = str(PurePosixPath(entry)) if entry else _find_entry(place, files)
    if entry not in files:
        near = format_names(_python_files(files), MOST_NAMES) or "none"
        why = "git ignores it" if entry in left_out else f"its Python files: {near}"
        raise Trouble(f"the program {place} has no file {entry}; {why}", WRONG_USE)
    return ProgramSource(
        path=place,
        name=safe_file_name(place.resolve().name),
        body=body,
        entry=entry,
        packed=True,
        files=files,
        left_out=tuple(left_out),
    )


def _python_files(files: Iterable[str]) -> list[str]:
    return sorted(file for file in files if file.endswith(".py"))


def _find_entry(place: Path, files: Mapping[str, bytes]) -> str:
    """Return the entry of a program that names none. Raise `Trouble` if it is not clear."""
    if MAIN in files:
        return MAIN
    top = [file for file in _python_files(files) if "/" not in file]
    having = [file for file in top if _has_model(files[file])]
    if len(having) == 1:
        return having[0]
    found = "is no Python file"
    if having:
        found = f"are {' and '.join(having)} with model()"
    elif top:
        found = f"is no model() in {format_names(top, MOST_NAMES)}"
    raise Trouble(NO_ENTRY.format(path=place, main=MAIN, found=found), WRONG_USE)


def _has_model(text: bytes) -> bool:
    """Return whether a Python file defines or imports `model` at its top level."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "model":
            return True
        names = node.names if isinstance(node, ast.ImportFrom) else []
        if any((alias.asname or alias.name) == "model" for alias in names):
            return True
    return False


# ---------------------------------------------------------------- a folder or a zip file


def _read_folder(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a folder by path, and the paths that git ignores.

    Raise `BadArchive` with every reason against them, before anything is read.
    """
    sizes: dict[str, int] = {}
    reasons = []
    left_out: list[str] = []
    for entry, path in _walk(folder, "", _rules_above(folder), left_out):
        sizes[path] = entry.stat(follow_symlinks=False).st_size
        if entry.is_symlink():
            remedy = f"put the file itself there, or leave it out by {IGNORE_FILE}"
            reasons.append(f"{path} is a link: {remedy}")
        elif not entry.is_file():
            reasons.append(f"{path} is neither a file nor a folder")
        if len(sizes) > MOST_WALKED:
            break
    against = list(file_reasons(sizes.items()))
    if len(sizes) > MOST_FILES:
        against.append(_describe_fullest(sizes))
    elif sum(sizes.values()) > LARGEST_PROGRAM:
        against.append(_describe_largest(sizes))
    if reasons or against:
        raise BadArchive([*reasons, *against])
    return {path: (folder / path).read_bytes() for path in sizes}, left_out


def _walk(
    folder: Path, below: str, rules: IgnoreRules, left_out: list[str]
) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Yield the files below a folder with their paths, sorted. `below`: the path of what is walked,
    empty or with `/` at its end. `left_out` receives the paths that git ignores.
    """
    ignore_file = folder / below / IGNORE_FILE
    if ignore_file.is_file():
        rules = rules.with_file(below, ignore_file.read_bytes())
    with os.scandir(folder / below) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        is_folder = entry.is_dir(follow_symlinks=False)
        path = f"{below}{entry.name}{'/' if is_folder else ''}"
        if NEVER_PART.match_file(path):
            continue
        if rules.ignores(path):
            left_out.append(path)
        elif is_folder:
            yield from _walk(folder, path, rules, left_out)
        else:
            yield entry, path


class IgnoreRules(msgspec.Struct, frozen=True):
    """The rules of `.gitignore` files, as git applies them: the last rule that matches a path
    counts, and those of a deeper folder come later.

    `prefix`: the path of the program's folder in its repository; `specs`: the rules, each with the
    path of its folder in the repository. Both paths are empty or end with `/`.
    """

    prefix: str = ""
    specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def with_file(self, below: str, text: bytes) -> IgnoreRules:
        """Return the rules with those of a file in this folder of the program."""
        return _with_rules(self, f"{self.prefix}{below}", text)

    def ignores(self, path: str) -> bool:
        """Return whether git ignores this path in the program; that of a folder ends with `/`."""
        whole = f"{self.prefix}{path}"
        ignored = False
        for folder, spec in self.specs:
            if whole.startswith(folder):
                include = spec.check_file(whole.removeprefix(folder)).include
                ignored = ignored if include is None else include
        return ignored


def _with_rules(rules: IgnoreRules, folder: str, text: bytes) -> IgnoreRules:
    spec = GitIgnoreSpec.from_lines(text.decode("utf-8", "replace").splitlines())
    return IgnoreRules(rules.prefix, (*rules.specs, (folder, spec)))


def _rules_above(folder: Path) -> IgnoreRules:
    """Return the rules of the git repository that a folder belongs to, from the folders above it.
    None of them counts if they ignore the folder itself.
    """
    whole = folder.resolve()
    parents = list(whole.parents)
    depth = next((n for n, parent in enumerate(parents) if (parent / ".git").exists()), None)
    if depth is None or (whole / ".git").exists():
        return IgnoreRules()
    root = parents[depth]
    rules = IgnoreRules(f"{whole.relative_to(root).as_posix()}/")
    for parent in reversed(parents[: depth + 1]):
        ignore_file = parent / IGNORE_FILE
        if ignore_file.is_file():
            below = "" if parent == root else f"{parent.relative_to(root).as_posix()}/"
            rules = _with_rules(rules, below, ignore_file.read_bytes())
    return IgnoreRules() if rules.ignores("") else rules


def _describe_largest(sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:MOST_NAMES]
    named = [f"{path} ({sizes[path] / MIB:.1f} MiB)" for path in largest]
    return f"the largest are {', '.join(named)}; {IGNORE_FILE} leaves files out"


def _describe_fullest(sizes: Iterable[str]) -> str:
    counts = Counter(path.split("/")[0] for path in sizes)
    named = [f"{name} ({count:,})" for name, count in counts.most_common(MOST_NAMES)]
    return f"the most are in {', '.join(named)}; {IGNORE_FILE} leaves files out"


def _read_zip(file: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of a zip file by path, and the paths that its own `.gitignore` files leave
    out. If one folder has all its files, that folder is the program.
    """
    size = file.stat().st_size
    if size > LARGEST_PROGRAM:
        raise BadArchive([size_reason(size)])
    files = {}
    for path, body in read_archive(file.read_bytes()).items():
        if not _has_part(path, NEVER_PART.match_file):
            files[path] = body
    files = _without_common_folder(files)
    rules = IgnoreRules()
    for path in sorted(files, key=lambda each: each.count("/")):
        folder, _, name = path.rpartition("/")
        if name == IGNORE_FILE:
            rules = rules.with_file(f"{folder}/" if folder else "", files[path])
    left_out = [path for path in sorted(files) if _has_part(path, rules.ignores)]
    return {path: body for path, body in files.items() if path not in left_out}, left_out


def _without_common_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files by their paths below the one folder that has all of them, if there is one."""
    folders = set()
    for path in files:
        folder, slash, _ = path.partition("/")
        if not slash:
            return files
        folders.add(folder)
    if len(folders) != 1:
        return files
    return {path.partition("/")[2]: body for path, body in files.items()}


def _has_part(path: str, holds: Callable[[str], bool]) -> bool:
    """Return whether something holds for a path or for a folder on its way."""
    folders = [f"{folder}/" for folder in PurePosixPath(path).parents if str(folder) != "."]
    return any(map(holds, (*reversed(folders), path)))
