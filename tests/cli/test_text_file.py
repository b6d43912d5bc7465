"""A file that cannot be read is told with its reason and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.text_file import text_in
from services.cli.trouble import WRONG_USE, Trouble


def test_text_is_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes("job: naïve\n".encode())

    assert text_in(tmp_path / "job.yaml", "") == "job: naïve\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.yaml", "cannot read {}: No such file or directory; give another"),
        ("folder", "cannot read {}: Is a directory; give another"),
        ("latin.yaml", "{} is not text in UTF-8: invalid continuation byte; save it as UTF-8"),
    ],
)
def test_what_is_no_text_is_wrong_use(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.yaml").write_bytes("job: naïve\n".encode("latin-1"))

    with pytest.raises(Trouble) as caught:
        text_in(tmp_path / name, "give another")

    assert (str(caught.value), caught.value.code) == (told.format(tmp_path / name), WRONG_USE)
