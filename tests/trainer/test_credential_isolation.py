"""Tests that a credential from the environment cannot be seen after the start of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.trainer import credential_isolation

ROOT = Path(__file__).parents[2]
SECRET = "the secret, in\ntwo lines"
KEEPER = """
import os, sys
from services.trainer import credential_isolation
text = credential_isolation.take_credential(os.environ)
print(repr(text), sorted(n for n in os.environ if n.startswith("WEIR_NATS")), os.getpid(), flush=True)
sys.stdin.readline()
"""
PRYING = """
import sys
from services.trainer import credential_isolation
credential_isolation.drop_ptrace()
try:
    open(f"/proc/{sys.argv[1]}/mem", "rb")
    print("its memory is open")
except OSError as error:
    print(type(error).__name__)
"""

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere there is nothing to look into"
)


def keeper(**environ: str) -> subprocess.Popen[str]:
    place = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", KEEPER], env=place, stdin=pipe, stdout=pipe, text=True
    )


@linux
def test_the_credential_is_removed_from_the_environment() -> None:
    with keeper(WEIR_NATS_CREDS_TEXT=SECRET) as process:
        assert process.stdin and process.stdout
        said = process.stdout.readline()
        seen = Path(f"/proc/{process.pid}/environ").read_bytes() if os.getuid() == 0 else b""
        process.stdin.close()

    assert said == f"{SECRET!r} [] {process.pid}\n"  # the same process
    assert b"the secret" not in seen


@linux
def test_a_process_of_the_same_user_cannot_read_the_credential() -> None:
    with keeper(WEIR_NATS_CREDS_TEXT=SECRET) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        command = [sys.executable, "-c", PRYING, str(process.pid)]
        pried = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        process.stdin.close()

    assert pried.stdout == "PermissionError\n"


@linux
def test_exec_does_not_restore_the_privilege() -> None:
    code = "import os; from services.trainer import credential_isolation; "
    code += f"credential_isolation.drop_ptrace(); os.execv('/bin/cat', {STATUS})"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    held = {
        line.split(":")[0]: int(line.split()[1], 16)
        for line in told.splitlines()
        if line.startswith("Cap")
    }

    assert [
        name for name, bits in held.items() if bits >> credential_isolation.CAP_SYS_PTRACE & 1
    ] == []


STATUS = ["cat", "/proc/self/status"]


def test_without_a_credential_nothing_happens() -> None:
    environ = {"WEIR_NATS_URL": "nats://here"}

    assert credential_isolation.take_credential(environ) == "" and environ == {
        "WEIR_NATS_URL": "nats://here"
    }
