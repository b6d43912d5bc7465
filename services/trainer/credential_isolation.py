"""The job's credential: known to this process and hidden from every other one.

The pod receives it in an environment variable, because the program could read a file or a volume as
well. But the initial environment of a process stays readable for all processes of the same user,
and the program is one. So this process removes the variable and starts itself again with an
environment that never held it; meanwhile the credential lies in unnamed memory (`memfd`). After
that no other process of this user may inspect this one (PR_SET_DUMPABLE), and the children may not
even as root (`drop_ptrace`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping

from shared.runtime import process

TEXT, HANDLE = "WEIR_NATS_CREDS_TEXT", "WEIR_NATS_CREDS_HANDLE"
INIT_PID = 1  # the first process of a container
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
CAP_SYS_PTRACE = 19
CAPABILITY_SETS = ("effective", "permitted", "inheritable")
CAP_VERSION, CAP_WORDS = 0x20080522, 2  # version 3: 64 bits, in two words


def take_credential(environ: MutableMapping[str, str]) -> str:
    """Return the credential's text; empty if there is none. May restart this process in place of
    returning.
    """
    text = environ.pop(TEXT, "")
    if text and hasattr(os, "memfd_create"):
        _restart_without_credential(text, environ)
    handle = environ.pop(HANDLE, None)
    if handle is None:
        return text
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if os.getpid() != INIT_PID:
        # Outside a container the starter cannot find this process by its environment any more.
        process.die_with_parent()
    with os.fdopen(int(handle), "rb") as kept:
        return kept.read().decode()


def _restart_without_credential(text: str, environ: MutableMapping[str, str]) -> None:
    handle = os.memfd_create("credentials", 0)
    os.write(handle, text.encode())
    os.lseek(handle, 0, os.SEEK_SET)
    os.execve(
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environ, HANDLE: str(handle)}
    )


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Word(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in CAPABILITY_SETS]


def drop_ptrace() -> None:
    """Give up the privilege to inspect other processes, permanently. Only root has it."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
    header, words = _Header(CAP_VERSION, 0), (_Word * CAP_WORDS)()
    if libc.capget(ctypes.byref(header), words) == 0:
        for name in CAPABILITY_SETS:
            setattr(words[0], name, getattr(words[0], name) & ~(1 << CAP_SYS_PTRACE))
        libc.capset(ctypes.byref(header), words)
