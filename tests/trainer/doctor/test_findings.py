"""Tests of the doctor's findings.

They come from the observations of a trainer's process, from the text of the program, and from
errors about labels and outputs. Such an error gets a hint only if its cause is certain.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.trainer.doctor.findings import (
    IMAGE_MODULES,
    Finding,
    format_bytes,
    imported_modules,
    loss_remedy,
    probability_findings,
    probability_loss_line,
    program_findings,
    shape_hint,
    source_findings,
)
from services.trainer.doctor.observations import Observations, Shape, VariableInfo

TRIED = {0: "a", 1: "b", 31: "c"}
WELL: dict[str, Any] = {
    "loaded_s": 1.5,
    "examples": 1437,
    "together": TRIED,
    "alone": TRIED,
    "read_s": 0.001,
    "variables": (
        VariableInfo(name="net/kernel", shape=(100, 10), bytes=4000, learns=True),
        VariableInfo(name="net/bias", shape=(10,), bytes=40, learns=True),
        VariableInfo(name="net/seen", shape=(), bytes=4),
    ),
    "update_s": 0.012,
    "loss": 2.3026,
    "evaluated": True,
    "done": True,
}
ONE_AXIS: dict[str, Any] = {"labels": ((32,),), "outputs": ((32, 1),)}
READER = Observations(
    loaded_s=1.0, examples=1437, together=TRIED, alone=TRIED, read_s=0.001, done=True
)


def found(there: Observations = READER, **fields: Any) -> list[Finding]:
    return list(program_findings(Observations(**(WELL | fields)), there, "plays.py"))


def ill(there: Observations = READER, **fields: Any) -> Finding:
    """Return the only finding that is not fine."""
    (one,) = [each for each in found(there, **fields) if each.weight != "fine"]
    return one


def test_a_good_program_has_fine_findings_with_measurements() -> None:
    assert [(f.weight, f.what) for f in found()] == [
        ("fine", "imported in 1.5 s; 1,437 examples"),
        (
            "fine",
            (
                "the same example for the same number, in a batch, alone, and in another process (3"
                " of 1,437 tried)"
            ),
        ),
        ("fine", "the model has 3 variables with 4.04 kB, of which net/kernel has 4 kB"),
        ("fine", "an update takes 12 ms here, at a loss of 2.303"),
        ("fine", "evaluation() and metrics() work"),
    ]


def test_an_example_that_differs_when_read_alone_is_named() -> None:
    told = ill(alone=TRIED | {1: "x", 31: "y"})

    assert told.weight == "wrong"
    assert told.what == "example 1, 31 differs when it is read alone (3 of 1,437 tried)"
    assert "fixed seed" in told.remedy


def test_an_example_that_differs_in_another_process_is_named() -> None:
    told = ill(Observations(together=TRIED | {0: "x"}, read_s=0.1, done=True))

    assert told.weight == "wrong" and told.what.startswith("example 0 differs in another process")
    assert "hash()" in told.remedy


def test_a_read_error_in_the_other_process_is_reported() -> None:
    told = ill(Observations(failed="mine.py:3: OSError: only one reader\nTraceback ..."))

    assert told.weight == "wrong" and told.what == "mine.py:3: OSError: only one reader"
    assert not any("the same example" in each.what for each in found(Observations(failed="-")))


@pytest.mark.parametrize(
    ("fields", "weight", "what"),
    [
        ({"infinite": (3, 9)}, "wrong", "example 3, 9 has a value that is not finite"),
        ({"loss": None, "finite": False}, "wrong", "after two updates the loss is not finite"),
        ({"finite": False}, "wrong", "after two updates weights are not finite"),
        ({"scheduled": True}, "advice", "the learning rate is a schedule"),
        ({"ordered": True}, "advice", "the labels are sorted, and shuffle: off keeps their order"),
        ({"read_s": 0.9}, "advice", "a batch is read in 900 ms, longer than its update takes"),
        (
            {"mixed": True} | ONE_AXIS,
            "wrong",
            "every example with every other: the mean of (32,) and (32, 1)",
        ),
        (
            {"lossy": (32, 32)} | ONE_AXIS,
            "wrong",
            "example with every other: (32, 32) of (32,) and (32, 1)",
        ),
    ],
)
def test_every_finding_has_a_remedy(fields: dict[str, Any], weight: str, what: str) -> None:
    told = ill(**fields)

    assert told.weight == weight and what in told.what and told.remedy


def test_an_idle_variable_and_a_fully_transferred_one_are_named() -> None:
    idle = VariableInfo(name="net/idle", shape=(3,), bytes=12, learns=False)
    table = VariableInfo(
        name="net/users", shape=(10**6, 16), bytes=64 * 10**6, learns=True, whole=True
    )

    assert ill(variables=(idle,)).what == "net/idle never learns: the loss does not depend on it"
    small = msgspec.structs.replace(table, bytes=500_000)
    assert [f.weight for f in found(variables=(small,))] == ["fine"] * 5
    read = ill(variables=(table,))
    assert read.what == "each batch reads all of net/users, 64 MB in all"
    assert read.remedy.startswith("use keras.layers.Embedding")
    assert "Lamb may combine the rows" in ill(variables=(table,), combines_rows="Lamb").remedy


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (
            "mine.py:1: ModuleNotFoundError: No module named 'pandas'",
            "install pandas here and in the job's image",
        ),
        ("mine.py:9: FileNotFoundError: [Errno 2] 'x.csv'", "read data from a volume"),
        (
            "dataset(0, 32) gave 2 examples instead of 32: is it batched already?",
            "take .batch(...) out",
        ),
        ("its process ended with SIGKILL before it was done\n", "more memory"),
        (
            "mine.py:4: ZeroDivisionError: division by zero",
            "fix it: a job would fail with this cause",
        ),
    ],
)
def test_a_failure_is_described_as_a_job_would(cause: str, remedy: str) -> None:
    told = list(
        program_findings(
            Observations(failed=f"{cause}\nTraceback (most recent call last):"), READER, "plays.py"
        )
    )

    assert (
        len(told) == 1
        and told[0].what == cause.strip().splitlines()[0]
        and remedy in told[0].remedy
    )
    assert told[0].more.endswith("Traceback (most recent call last):")


def test_bytes_are_shown_in_the_largest_fitting_unit() -> None:
    assert [format_bytes(n) for n in (12, 4_040, 64 * 10**6, 1_484_800_000)] == [
        "12 bytes",
        "4.04 kB",
        "64 MB",
        "1.48 GB",
    ]


ROOT = Path(__file__).parents[3]


def found_test_source(
    text: str, beside: tuple[str, ...] = (), image: str | None = None
) -> list[Finding]:
    return list(source_findings(ast.parse(text), "mine.py", beside, (), image))


def test_imported_modules_exclude_the_standard_library() -> None:
    text = (
        "import os, numpy as np\nfrom sklearn.datasets import load_digits\ndef model():\n    import"
        " keras.layers\n"
    )

    assert imported_modules([ast.parse(text)]) == ["keras", "numpy", "sklearn"]


def test_a_local_module_is_not_shipped() -> None:
    (told,) = found_test_source(
        "import keras\nfrom helpers import clean\nimport helpers.more\n", ("helpers", "other")
    )

    assert (told.weight, told.what) == (
        "wrong",
        "mine.py:2: it imports helpers, which lies beside it",
    )
    assert told.remedy == "only mine.py is uploaded: give its folder as the program, FOLDER:mine.py"


def test_modules_missing_from_the_trainer_image_are_named() -> None:
    (told,) = found_test_source("import pandas, keras, polars\n")

    assert (
        told.weight == "advice"
        and told.what == "it imports pandas, polars, which Weir's trainer image lacks"
    )
    assert found_test_source("import pandas\n", image="registry/mine:1") == []


def test_the_list_of_image_modules_matches_the_image() -> None:
    packages = set((ROOT / "deploy" / "image" / "trainer.txt").read_text().split())

    assert {"scikit-learn" if name == "sklearn" else name for name in IMAGE_MODULES} <= packages


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
            "it uses hash(), which differs between processes for strings",
        ),
        ("f = Path(__file__).parent", "it uses __file__"),
        ("x = np.load('data/x.npy')", "it reads 'data/x.npy', a relative path"),
        ("x = open('words.txt').read()", "it reads 'words.txt', a relative path"),
    ],
)
def test_a_trap_is_reported_once_with_its_line_and_a_remedy(line: str, what: str) -> None:
    (told,) = found_test_source(f"import keras\n\n{line}\n{line}\n")

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
def test_harmless_code_is_not_reported(line: str) -> None:
    assert found_test_source(line) == []


@pytest.mark.parametrize(
    "program", sorted((ROOT / "deploy" / "jobs").glob("*.py")), ids=lambda p: p.name
)
def test_the_example_programs_have_no_findings(program: Path) -> None:
    assert found_test_source(program.read_text()) == []


def test_severities_are_words() -> None:
    assert all(
        re.fullmatch("wrong|advice", told.weight)
        for told in found_test_source("import helpers, pandas", ("helpers",))
    )


KERAS = "ValueError: Arguments `target` and `output` must have the same"
PROGRAM = """
def loss(labels, outputs):
    return {}
"""


@pytest.mark.parametrize(
    ("labels", "outputs", "hint"),
    [
        ((32,), (32, 1), "labels are (32,) and outputs (32, 1): take labels[:, None] in loss()"),
        ((32, 1), (32,), "labels are (32, 1) and outputs (32,): take outputs[:, None] in loss()"),
        (
            (32, 7),
            (32, 7, 1),
            "labels are (32, 7) and outputs (32, 7, 1): take labels[:, :, None] in loss()",
        ),
        ((32, 10), (32, 5), "a label has 10 numbers and an output 5: give the last layer 10"),
        ((32,), (32, 10), ""),
        ((32, 10), (32, 10), ""),
    ],
)
def test_a_shape_mismatch_has_both_shapes(labels: Shape, outputs: Shape, hint: str) -> None:
    assert shape_hint((labels,), (outputs,)) == hint
    assert shape_hint((labels, labels), (outputs,)) == ""


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (
            (
                "InvalidArgumentError: Received a label value of 9 which is outside the valid range"
                " of [0, 5)."
            ),
            "5 classes",
        ),
        (
            (
                f"{KERAS} rank (ndim). Received: target.shape=(32,), output.shape=(32, 10)\n"
                "    return keras.losses.categorical_crossentropy(labels, outputs)"
            ),
            "keras.losses.sparse_categorical_crossentropy takes",
        ),
        (
            (
                "ValueError: Argument `output` must have rank (ndim) `target.ndim - 1`. Received:"
                " target.shape=(32, 10), output.shape=(32, 10)"
            ),
            "keras.losses.categorical_crossentropy takes",
        ),
        (
            f'{KERAS} rank (ndim). Received: ...\n  File "mine.py", line 9, in loss\n    return',
            "labels[:, None]",
        ),
        (f'{KERAS} rank (ndim). Received: ...\n  File "mine.py", line 9, in model\n    return', ""),
        ("ZeroDivisionError: division by zero\n  File 'mine.py', line 9, in loss\n", ""),
    ],
)
def test_a_failure_has_a_remedy_if_it_is_certain(cause: str, hint: str) -> None:
    found = loss_remedy(cause, Observations(labels=((32,),), outputs=((32, 1),)))

    assert hint in found and bool(hint) is bool(found)


@pytest.mark.parametrize(
    "call",
    [
        "keras.losses.sparse_categorical_crossentropy(labels, outputs)",
        "tf.keras.losses.BinaryCrossentropy(reduction=None)(labels, outputs)",
        "tf.reduce_mean(keras.losses.categorical_crossentropy(labels, outputs))",
    ],
)
def test_logits_used_as_probabilities_are_reported(call: str) -> None:
    tree = ast.parse(PROGRAM.format(call))
    (told,) = probability_findings(tree, "mine.py", Observations(span=(-1.25, 3.5)))

    assert (
        told.what == "mine.py:3: loss() expects probabilities, but outputs range from -1.25 to 3.5"
    )
    assert not list(probability_findings(tree, "mine.py", Observations(span=(0.0, 1.0))))
    assert not list(probability_findings(tree, "mine.py", Observations()))


@pytest.mark.parametrize(
    "call",
    [
        "keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)",
        "keras.losses.sparse_categorical_crossentropy(labels, outputs, True)",
        "keras.losses.BinaryCrossentropy(True)(labels, outputs)",
        "keras.losses.BinaryCrossentropy(**HOW)(labels, outputs)",
        "keras.losses.binary_crossentropy(labels, tf.nn.sigmoid(outputs))",
        "keras.losses.mean_squared_error(labels, outputs)",
        "own.binary_crossentropy(labels, outputs)",
        (
            "labels\n    outputs = outputs / 2\n    return keras.losses.binary_crossentropy(labels,"
            " outputs)"
        ),
    ],
)
def test_unclear_loss_code_is_not_reported(call: str) -> None:
    assert probability_loss_line(ast.parse(PROGRAM.format(call))) is None
