"""Which facts a person names: `training.resumed`, all of `training`, or `resumed` alone. Pure."""

from __future__ import annotations

import argparse

from services.cli.words import Word
from shared.subjects import BY_TAG

NAMED: dict[str, tuple[str, ...]] = {
    **{tag.partition(".")[2]: (tag,) for tag in BY_TAG},
    **{
        area: tuple(t for t in BY_TAG if t.startswith(f"{area}.")) for area in (tag.partition(".")[0] for tag in BY_TAG)
    },
    **{tag: (tag,) for tag in BY_TAG},
}
"""Tags, by whatever names them: the second word, the first, or both."""


def _named(text: str) -> tuple[str, ...]:
    """Tags; several names are separated by commas. Raises `ArgumentTypeError` with all the names that there are."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in NAMED]
    if unknown or not named:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or text!r}: there are {', '.join(BY_TAG)}")
    return tuple(dict.fromkeys(tag for name in named for tag in NAMED[name]))


kinds = Word(_named, offers=tuple(dict.fromkeys(word for tag in BY_TAG for word in (tag.partition(".")[0], tag))))
