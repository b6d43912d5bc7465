"""`weir checkpoints [PATH]`: the folders of jobs; the checkpoints of a job with their sizes; merge
a delta into a checkpoint that Keras restores.

TensorFlow reads and writes them, in a process of its own; this one has no TensorFlow.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from services.cli.command_line import (
    CHECKPOINTS,
    Arguments,
    argument,
    command,
    json_option,
    option,
)
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from services.trainer.doctor.findings import format_bytes
from services.trainer.stored_checkpoints import Answer, StoredCheckpoint
from shared.checkpoints import REQUEST
from shared.runtime import process
from shared.text import format_count, single_line

EXAMPLES = (
    "weir checkpoints",
    "weir checkpoints .weir/checkpoints/default/plays-7-20261123t043512",
    "weir checkpoints default/plays-7-20261123t043512/gen-2/ckpt-480 --merge plays",
)
TOOL = "services.trainer.worker.stored_checkpoints"


@command(EXAMPLES)
@argument(
    "path",
    required=False,
    metavar="[PATH]",
    help="the folder of a job's checkpoints, of one generation, or one checkpoint; a path or URL; "
    f"of a local folder with jobs, print their folders (default: {CHECKPOINTS})",
)
@option(
    "--merge",
    metavar="OUTPUT",
    help="write the checkpoint OUTPUT: that in PATH with all rows of its tables, for Keras",
)
@json_option
def run(args: Arguments) -> int:
    if args.merge and args.path is None:
        raise Trouble("--merge needs PATH, the checkpoint to merge", WRONG_USE)
    path = absolute_path((args.path or str(CHECKPOINTS)).rstrip("/").removesuffix(".index"))
    if args.merge:
        (merged,) = ask("merge", path, absolute_path(args.merge))
        print(f"{merged.path}: {describe(merged)}")
        return DONE
    jobs = job_folders(path)
    if jobs and jobs != [path]:
        print_folders(jobs, args.json)
        return DONE
    found = ask("list", path)
    if not found:
        raise Trouble(f"no checkpoint is in {path}", FAILED)
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        print_table(found)
    if [each.path for each in found] == [path] and found[0].is_delta:
        print(f"\n{refusal(found[0])}", file=sys.stderr)
        return FAILED
    return DONE


def print_folders(folders: Sequence[str], as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(folders).decode())
        return
    for folder in folders:
        print(single_line(folder))


def job_folders(path: str) -> list[str]:
    """Return the folders of jobs in a folder of this machine, or the folder itself if it is one."""
    found = []
    for folder, below, _ in os.walk(path):  # a URL is no local folder
        if os.path.isfile(f"{folder}/{REQUEST}"):
            found.append(folder)
            below.clear()
    return sorted(found)


def absolute_path(path: str) -> str:
    """Return the absolute path, or the URL: files that a checkpoint needs are in folders beside."""
    return path if "://" in path else os.path.abspath(path)


def ask(*words: str) -> Sequence[StoredCheckpoint]:
    """Return the answer of the process with TensorFlow. Raise `Trouble` with its error."""
    print("TensorFlow takes some seconds to start", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-P", "-m", TOOL, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        preexec_fn=process.die_with_parent,
    )
    try:
        answer = msgspec.json.decode(done.stdout.splitlines()[-1], type=Answer)
    except (IndexError, msgspec.DecodeError):
        raise Trouble(_why_it_ended(done), FAILED) from None
    if answer.error:
        raise Trouble(answer.error, FAILED)
    return answer.checkpoints


def _why_it_ended(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return why a process has ended without an answer. One that a signal ends removes no files."""
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode >= 0:
        return said
    name = signal.Signals(-done.returncode).name
    return f"{said}\n{name} ended the process. A merge leaves the folder OUTPUT_temp: remove it"


def print_table(found: Sequence[StoredCheckpoint]) -> None:
    width = max(len(each.path) for each in found)
    for each in found:
        print(f"{single_line(each.path):<{width}}  {describe(each)}")


def describe(found: StoredCheckpoint) -> str:
    """Return the kind of a checkpoint, its size, and what it needs."""
    if found.fault:
        return f"damaged: {single_line(found.fault)}"
    if not found.is_delta:
        return f"whole, {format_bytes(found.bytes)}"
    base, *deltas, own = found.tables
    size = f"delta of {format_count(own.rows, 'row')}, {format_bytes(found.bytes)}"
    needed = f"needs {base.path} ({format_bytes(base.bytes)})"
    if deltas:
        between = format_bytes(sum(each.bytes for each in deltas))
        needed += f" and {format_count(len(deltas), 'delta')} ({between})"
    return f"{size}; {needed}"


def refusal(found: StoredCheckpoint) -> str:
    """Return why Keras cannot restore a delta, and the command that helps."""
    merge = shlex.join(["weir", "checkpoints", found.path, "--merge", f"{found.path}-merged"])
    return (
        f"{found.path} is a delta: it has the rows of tables that changed, and Keras cannot restore "
        f"it. Merge it with the files that it needs: {merge}"
    )
