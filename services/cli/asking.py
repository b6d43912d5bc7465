"""What `weir submit` asks for, from the files of this machine: all is read and checked before the
bus is looked for.

What is wrong with a request in itself, and with its program, is told here, every reason at once.
What only the cluster knows (which namespaces, images, folders and policies of its own it allows,
which names are in use) it answers.
"""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path

import msgspec

from services.cli import from_tfjob, program_check, request_file, store
from services.cli.request_file import Fields
from services.cli.text_file import text_in
from services.cli.trouble import WRONG_USE, Trouble
from shared.text import single_line

NO_PROGRAM = {"name": "program.py", "digest": f"sha256-{'0' * 64}"}
"""Stands for one that cannot be read, while the other fields are looked at."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """`file`: what is asked by; `body`: the request with these `fields`, as JSON; `path`: of the
    program that goes with it, None where the request names one by its digest.
    """

    file: Path
    fields: Fields
    body: bytes
    path: Path | None
    program: bytes | None


def asked(args: argparse.Namespace) -> Asked:
    """Raises `Trouble` with everything that can be told against it here."""
    file = _source(args)
    fields, path = from_tfjob.asked(args) if args.tfjob else _own(file, args)
    fields = _in_namespace(fields, args.namespace, file)
    program, found, trouble = _program(path)
    fields = request_file.completed(fields, found, uuid.uuid4().hex)
    body = request_file.encoded(fields, file.name)
    if wrong := request_file.reasons_against(fields):
        told = [*wrong, *(f"program: {line}" for line in str(trouble or "").splitlines())]
        raise Trouble(
            "\n".join(
                [f"{file} cannot be asked for:", *(f"  - {single_line(r)}" for r in told), BEGIN]
            ),
            WRONG_USE,
        )
    if trouble:
        raise trouble
    return Asked(file=file, fields=fields, body=body, path=path, program=program)


BEGIN = f"Nothing was sent; {request_file.BEGIN}."


def _source(args: argparse.Namespace) -> Path:
    """The file that is asked by."""
    file: Path | None = args.tfjob or args.file
    if file is None:
        raise Trouble("which job? Give its FILE, or PROGRAM and --tfjob FILE", WRONG_USE)
    return file


def _own(file: Path, args: argparse.Namespace) -> tuple[Fields, Path | None]:
    """Of a job's own file; its program lies beside it."""
    from_tfjob.unused(args)
    fields = request_file.parse(text_in(file, request_file.ONE), file.name)
    program = fields.get("program")
    return fields, file.parent / program if isinstance(program, str) and program else None


def _in_namespace(fields: Fields, namespace: str | None, file: Path) -> Fields:
    """Return the fields with the namespace that was given; raise `Trouble` if the file names
    another one.
    """
    if namespace is None:
        return fields
    named = fields.get("namespace", namespace)
    if named != namespace:
        raise Trouble(
            f"{file} names the namespace {named!r}, and -n {namespace!r}: give one of them",
            WRONG_USE,
        )
    return {**fields, "namespace": namespace}


def _program(path: Path | None) -> tuple[bytes | None, Fields | None, Trouble | None]:
    """Its text, how the request names it, and what is wrong with it."""
    if path is None:
        return None, None, None
    try:
        body = store.read(path)
        program_check.check(body, path)
    except Trouble as trouble:
        return None, NO_PROGRAM, trouble
    return body, {"name": path.name, "digest": store.digest(body)}, None
