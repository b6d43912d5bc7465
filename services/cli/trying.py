"""Two processes that try a program as a trainer's would, each begun in a folder of its own.
Edge.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from services.trainer.doctor.observations import ExamineRequest, Observations
from services.trainer.protocol import crash_failure
from shared.runtime import process

LONGEST_S = 600.0  # from the last that it tells to its end
LAST = 2000  # characters of what it printed
SEEN = msgspec.json.Decoder(Observations)


def tried(name: str, body: bytes, asked: ExamineRequest) -> tuple[Observations, Observations]:
    """What two processes saw: one that tries all, and one that reads the same examples; another
    `hash` has each.
    """
    print("tries it in two processes; TensorFlow takes some seconds to begin", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="weir-doctor-") as folder:
        path = Path(folder) / "program" / name
        path.parent.mkdir()
        path.write_bytes(body)
        every = msgspec.structs.replace(asked, program=str(path))
        trials = [
            _Trial(Path(folder), each, seed)
            for seed, each in enumerate([every, _only_reads(every)])
        ]
        here, there = (trial.outcome() for trial in trials)
        return here, there


def _only_reads(asked: ExamineRequest) -> ExamineRequest:
    return msgspec.structs.replace(asked, ps=0)


class _Trial:
    """One process, begun in a folder of its own, as a pod is."""

    def __init__(self, folder: Path, asked: ExamineRequest, seed: int) -> None:
        self.asked, self._folder = asked, folder / str(seed)
        self._folder.mkdir()
        self._reads, writes = os.pipe()
        self._log = (self._folder / "log").open("wb")
        words = [
            "-P",
            "-m",
            "services.trainer.doctor.examine",
            str(writes),
            msgspec.json.encode(asked).decode(),
        ]
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self._folder,
            env=_environment(seed),
            pass_fds=[writes],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=process.die_with_parent,
        )
        os.close(writes)

    def outcome(self) -> Observations:
        """The last that it told, once it has ended; and why it told no more."""
        with os.fdopen(self._reads, "rb") as told:
            lines = told.read().splitlines()
        code = self._process.wait(LONGEST_S)
        self._log.close()
        words, seen = list[str](), Observations()
        for line in lines:
            try:
                seen = SEEN.decode(line)
            except msgspec.DecodeError:
                words.append(line.decode(errors="replace"))  # of faulthandler
        if seen.failed or seen.done:
            return seen
        return msgspec.structs.replace(seen, failed=self._died(code, "\n".join(words)))

    def _died(self, code: int, words: str) -> str:
        if words:
            return crash_failure(words, self.asked.program).cause
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        said = (self._folder / "log").read_text(errors="replace")[-LAST:]
        return f"its process ended with {how}, and says no more\n{said}"


def _environment(seed: int) -> dict[str, str]:
    """As a pod's, as far as a program could tell: another seed for `hash` in each, and no folder to
    import from.
    """
    ours = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": path, "PYTHONHASHSEED": str(seed + 1)}
    return {**os.environ, **more, "GRPC_FAIL_FAST": "use_caller", "TF_CPP_MIN_LOG_LEVEL": "3"}
