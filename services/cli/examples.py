"""The folder of the example jobs: `deploy/jobs` of a checkout; in an installed package a folder
beside this module.
"""

from __future__ import annotations

from pathlib import Path

IN_CHECKOUT = Path("deploy/jobs")
CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGED = Path(__file__).with_name("example_jobs")
"""pyproject.toml puts `deploy/jobs` there in a wheel."""


def examples_folder() -> Path:
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT / IN_CHECKOUT


def example(name: str) -> str:
    """Return the path of an example as a person types it: relative to a checkout, or absolute in a
    package.
    """
    return str((PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT) / name)
