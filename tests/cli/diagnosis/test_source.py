"""What the text of a program gives away."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from services.cli.diagnosis.finding import Finding
from services.cli.diagnosis.source import SHIPPED, imported, of_source

ROOT = Path(__file__).parents[3]


def found(text: str, beside: tuple[str, ...] = (), image: str | None = None) -> list[Finding]:
    return list(of_source(ast.parse(text), "mine.py", beside, image))


def test_what_is_imported_is_named_without_pythons_own() -> None:
    text = "import os, numpy as np\nfrom sklearn.datasets import load_digits\ndef model():\n    import keras.layers\n"

    assert imported(ast.parse(text)) == ["keras", "numpy", "sklearn"]


def test_a_module_that_lies_beside_it_does_not_travel() -> None:
    (told,) = found(
        "import keras\nfrom helpers import clean\nimport helpers.more\n", ("helpers", "other")
    )

    assert (told.weight, told.what) == (
        "wrong",
        "mine.py:2: it imports helpers, which lies beside it",
    )
    assert told.remedy == "only mine.py is uploaded: put what it needs of helpers into it"


def test_what_the_trainers_image_lacks_is_named_unless_the_job_names_an_image() -> None:
    (told,) = found("import pandas, keras, polars\n")

    assert (
        told.weight == "advice"
        and told.what == "it imports pandas, polars, which Weir's trainer image lacks"
    )
    assert found("import pandas\n", image="registry/mine:1") == []


def test_what_is_said_of_the_image_is_what_the_image_is_made_of() -> None:
    packages = set((ROOT / "deploy" / "image" / "trainer.txt").read_text().split())

    assert {"scikit-learn" if name == "sklearn" else name for name in SHIPPED} <= packages


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("s = tf.distribute.ParameterServerStrategy(r)", "it uses ParameterServerStrategy"),
        ("s = MirroredStrategy()", "it uses MirroredStrategy"),
        ("c = os.environ['TF_CONFIG']", "it uses TF_CONFIG"),
        ("c = coordinator.ClusterCoordinator(s)", "it uses ClusterCoordinator"),
        (
            "p = tf.distribute.experimental.partitioners.MinSizePartitioner()",
            "it uses MinSizePartitioner",
        ),
        ("s = make(variable_partitioner=p)", "it uses variable_partitioner"),
        (
            "h = [hash(word) % 100 for word in words]",
            "it uses hash(), which differs between processes for texts",
        ),
        ("f = Path(__file__).parent", "it uses __file__"),
        ("x = np.load('data/x.npy')", "it reads 'data/x.npy', a path from where it runs"),
        ("x = open('words.txt').read()", "it reads 'words.txt', a path from where it runs"),
    ],
)
def test_a_trap_is_told_once_with_its_line_and_a_way_out(line: str, what: str) -> None:
    (told,) = found(f"import keras\n\n{line}\n{line}\n")

    assert (told.weight, told.what) == ("advice", f"mine.py:3: {what}")
    assert told.remedy


@pytest.mark.parametrize(
    "line",
    [
        "x = np.load('/data/x.npy')",
        "d = tf.data.TFRecordDataset('gs://bucket/x')",
        "t = open(path)",
        "n = self.hash(word)",
        "scaler.fit(x)",
    ],
)
def test_what_is_no_trap_is_let_be(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    "program", sorted((ROOT / "deploy" / "jobs").glob("*.py")), ids=lambda p: p.name
)
def test_nothing_is_found_in_the_programs_that_weir_brings(program: Path) -> None:
    assert found(program.read_text()) == []


def test_weights_are_words_that_a_reader_knows_without_colours() -> None:
    assert all(
        re.fullmatch("wrong|advice", told.weight)
        for told in found("import helpers, pandas", ("helpers",))
    )
