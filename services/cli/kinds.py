"""Which facts a person names: `training.resumed`, all of `training`, or `resumed` alone. Pure."""

from __future__ import annotations

import argparse

from services.cli.words import Word
from shared.bus.subjects import BY_TAG

AREAS, LAST_WORDS = ([tag.split(".")[word] for tag in BY_TAG] for word in (0, 1))
NAMED: dict[str, tuple[str, ...]] = {
    **{last: tuple(tag for tag in BY_TAG if tag.endswith(f".{last}")) for last in LAST_WORDS},
    **{area: tuple(tag for tag in BY_TAG if tag.startswith(f"{area}.")) for area in AREAS},
    **{tag: (tag,) for tag in BY_TAG},
}
"""Tags, by whatever names them: the second word (`changed`: of a job and of capacity), the first,
or both.
"""


def _named(text: str) -> tuple[str, ...]:
    """Tags; several names are separated by commas. Raises `ArgumentTypeError` with all the names
    that there are.
    """
    named = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in named if name not in NAMED]
    if unknown or not named:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown) or text!r}: there are {', '.join(BY_TAG)}"
        )
    return tuple(dict.fromkeys(tag for name in named for tag in NAMED[name]))


kinds = Word(
    _named,
    offers=tuple(dict.fromkeys(word for tag in BY_TAG for word in (tag.partition(".")[0], tag))),
)
