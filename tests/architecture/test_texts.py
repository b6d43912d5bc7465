"""Tests that the list of texts for a reviewer (`make texts`) contains each kind of text."""

from __future__ import annotations

from tests.architecture import texts

SOURCE = '''
"""A docstring is not a text."""
COLUMNS = ("JOB", "SIZE")
EXAMPLES = ("weir jobs --watch",)


def refuse(name: str) -> None:
    """Nor is this one."""
    log.warning("job.lost", job=name)
    option("--job", help="the name of a job")
    reason = f"waits for {name}: no room"
    path = "weir.facts.v1"
    raise ValueError(f"no job {name}")
'''


def test_every_kind_of_text_is_listed_and_a_docstring_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    (tmp_path / "example.py").write_text(SOURCE)
    found = {(text.kind, text.text) for text in texts.read_texts([tmp_path])}
    assert found == {
        (texts.COLUMN, "JOB"),
        (texts.COLUMN, "SIZE"),
        (texts.HELP, "weir jobs --watch"),
        (texts.HELP, "the name of a job"),
        (texts.REASON, "waits for {name}: no room"),
        (texts.ERROR, "no job {name}"),
    }


def test_texts_of_the_page_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    (tmp_path / "page.html").write_text('<button title="Show all jobs">All</button>')
    (tmp_path / "page.js").write_text(
        "import x from './a b.js'\nshow('no jobs yet') // a 'quoted word'\n"
    )
    assert [text.text for text in texts.read_texts([tmp_path])] == [
        "Show all jobs",
        "All",
        "no jobs yet",
    ]


def test_the_product_has_texts_of_each_kind(capsys):
    assert texts.main([]) == 0
    listed = capsys.readouterr().out
    assert [kind for kind in texts.KINDS if f" {kind} " not in listed] == []


def test_texts_of_one_kind_are_listed_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(texts, "ROOT", tmp_path)
    (tmp_path / "example.py").write_text(SOURCE)
    assert texts.main([str(tmp_path), "--kind", texts.ERROR]) == 0
    listed = capsys.readouterr().out
    assert f" {texts.ERROR} " in listed and f" {texts.REASON} " not in listed
