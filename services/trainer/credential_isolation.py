"""The job's credential: known to this process, and to nobody who looks at it. Edge.

A pod is given it in an environment variable, for a file or a volume could be read by the program as
well. But the environment with which a process was started stays readable for all who run as the
same user, and the program does. So this process takes it out, and becomes itself anew with an
environment that has never held it; on the way it lies in memory that has no name (`memfd`). From
then on no other process of this user may look into this one (PR_SET_DUMPABLE), and the children may
not even where they are root (`blindfold`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping

from shared.runtime import process

TEXT, HANDLE = "WEIR_NATS_CREDS_TEXT", "WEIR_NATS_CREDS_HANDLE"
FIRST = 1  # process of a container
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
CAP_SYS_PTRACE = 19
SETS = ("effective", "permitted", "inheritable")
CAP_VERSION, CAP_WORDS = 0x20080522, 2  # version 3: 64 bits, in two words


def taken(environ: MutableMapping[str, str]) -> str:
    """The credential's text; empty where there is none. May not return, but begin this process
    again.
    """
    text = environ.pop(TEXT, "")
    if text and hasattr(os, "memfd_create"):
        _begin_again(text, environ)
    handle = environ.pop(HANDLE, None)
    if handle is None:
        return text
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if (
        os.getpid() != FIRST
    ):  # in no container: whoever started us cannot find us any more by what we carry
        process.die_with_parent()
    with os.fdopen(int(handle), "rb") as kept:
        return kept.read().decode()


def _begin_again(text: str, environ: MutableMapping[str, str]) -> None:
    handle = os.memfd_create("credentials", 0)
    os.write(handle, text.encode())
    os.lseek(handle, 0, os.SEEK_SET)
    os.execve(
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environ, HANDLE: str(handle)}
    )


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Word(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in SETS]


def blindfold() -> None:
    """Give up, for good, the privilege to look into other processes; who is not root has none."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
    header, words = _Header(CAP_VERSION, 0), (_Word * CAP_WORDS)()
    if libc.capget(ctypes.byref(header), words) == 0:
        for name in SETS:
            setattr(words[0], name, getattr(words[0], name) & ~(1 << CAP_SYS_PTRACE))
        libc.capset(ctypes.byref(header), words)
