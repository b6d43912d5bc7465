"""What is told of a story while it goes on, so that it is never silent for long: pure, as far as a
memory goes.

Each turn is said when it comes; between two turns how far the job is, as far as that is new; and
where nothing is, what is waited for, and for how long it has been. Times are seconds of a clock
that only goes forward.
"""

from __future__ import annotations

from services.cli.sentences import sentence
from shared.messages import ProgressReported
from shared.text import format_duration

REPORT_S, STILL_S = 5.0, 15.0
"""Between two reports; and how long nothing may be said."""


class Turns:
    """Remembers what was said, and when."""

    def __init__(self, report_s: float = REPORT_S, still_s: float = STILL_S) -> None:
        self.report_s, self.still_s = report_s, still_s
        self._saying = ""
        self._turned_s = 0.0
        self._said_s = 0.0
        self._report: ProgressReported | None = None

    def line(self, saying: str, report: ProgressReported | None, now_s: float) -> str:
        """What to say now; empty: nothing. `report`: the newest."""
        line = self._line(saying, report, now_s)
        self._said_s = now_s if line else self._said_s
        return line

    def _line(self, saying: str, report: ProgressReported | None, now_s: float) -> str:
        if self._turns(saying, now_s):
            return saying
        if (
            report is not None
            and report is not self._report
            and now_s >= self._said_s + self.report_s
        ):
            self._report = report
            return sentence(report)
        late = saying and now_s >= self._said_s + self.still_s
        return f"{format_duration(now_s - self._turned_s)} so far: {saying}" if late else ""

    def heading(self, saying: str, now_s: float) -> str:
        """What happens, and for how long it has."""
        self._turns(saying, now_s)
        return f"{saying} ({format_duration(now_s - self._turned_s)})" if saying else ""

    def _turns(self, saying: str, now_s: float) -> bool:
        """Whether this is another turn."""
        if saying == self._saying:
            return False
        self._saying, self._turned_s = saying, now_s
        return True
