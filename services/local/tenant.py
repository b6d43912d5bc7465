"""A tenant: uses about the given amount of CPU until SIGTERM. `python -m services.local.tenant
--cpu 0.3`

In every slice of 10 ms it works for cpu x 10 ms and sleeps for the rest. So it stays within its
share even where no limit is enforced. More than one core takes one process for each core. SIGTERM
ends it with exit code 0.
"""

import argparse
import multiprocessing
import signal
import sys
import time
from types import FrameType

SLICE_S = 0.010


def process_shares(cpu: float) -> list[float]:
    """Return the share of a core of each process: 1, 1 and 0.5 for 2.5."""
    whole, rest = int(cpu), cpu - int(cpu)
    return [1.0] * whole + ([rest] if rest > 1e-9 else [])


def exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def burn_cpu(share: float) -> None:
    """Use CPU for ever. Time that a slice lost to other processes is not made up for."""
    signal.signal(signal.SIGTERM, exit_on_signal)
    while True:
        start, used = time.monotonic(), time.thread_time()
        while time.thread_time() - used < share * SLICE_S and time.monotonic() - start < SLICE_S:
            pass
        time.sleep(max(0.0, start + SLICE_S - time.monotonic()))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tenant", description="use CPU until SIGTERM")
    parser.add_argument("--cpu", type=float, required=True, help="cores")
    first, *others = process_shares(parser.parse_args(arguments).cpu) or [0.0]
    for share in others:
        multiprocessing.Process(target=burn_cpu, args=(share,), daemon=True).start()
    burn_cpu(first)


if __name__ == "__main__":
    main()
