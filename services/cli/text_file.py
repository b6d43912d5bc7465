"""The text of a file that somebody named; who names one that cannot be read is told why, and what
to do. Edge.
"""

from __future__ import annotations

from pathlib import Path

from services.cli.trouble import WRONG_USE, Trouble


def text_in(file: Path, hint: str) -> str:
    """`hint`: what else could be given, where there is no reading it."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise Trouble(f"cannot read {file}: {error.strerror}; {hint}", WRONG_USE) from error
    except UnicodeDecodeError as error:
        raise Trouble(
            f"{file} is not text in UTF-8: {error.reason}; save it as UTF-8", WRONG_USE
        ) from error
