"""Helpers that return what a terminal of some size shows, as lines or as a picture in colour."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

PICTURES = "WEIR_PICTURES"
"""Environment variable: the folder for pictures (default: the test's folder)."""


def shown(picture: RenderableType, width: int, height: int = 40) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as told:
        console.print(picture)
    return told.get().splitlines()


def svg(picture: RenderableType, width: int, title: str, folder: Path) -> Path:
    """Write an SVG picture of a terminal, as Rich draws it; return its path."""
    console = Console(
        width=width, file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor"
    )
    console.print(picture)
    file = Path(os.environ.get(PICTURES) or folder) / f"{title}.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(console.export_svg(title=title.replace("-", " ")))
    return file
