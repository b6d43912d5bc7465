"""Tests of `weir doctor` in real trainer processes: correct programs and common mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.__main__ import weir

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"
HEAD = """
import keras
import numpy as np
import tensorflow as tf

N = 64


def model():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def loss(labels, outputs):
    return keras.losses.mean_squared_error(labels, outputs)


def examples():
    return N


def dataset(start, stop):
    x = np.arange(start, stop, dtype="float32")[:, None] * np.ones((1, 2), "float32") / N
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
"""
STRANGE = """

WORDS = [f"word {n}" for n in range(N)]


def model():
    ids = keras.Input((1,), dtype="int32")
    vectors = keras.layers.Flatten()(keras.layers.Embedding(40_000, 8, name="words")(ids))
    idle = keras.layers.Dense(3, name="idle")(vectors)
    return keras.Model(ids, [keras.layers.Dense(1, name="used")(vectors), idle])


def loss(labels, outputs):
    return (labels - outputs[0]) ** 2


def dataset(start, stop):
    ids = np.array([[hash(word) % 1000] for word in WORDS[start:stop]], "int32")
    return tf.data.Dataset.from_tensor_slices((ids, np.arange(start, stop, dtype="float32")))
"""
SPOILT = """

def dataset(start, stop):
    x = np.arange(start, stop, dtype="float32")[:, None] * np.ones((1, 2), "float32")
    x[np.arange(start, stop) == 3] = np.inf
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
"""
CLASSES = """

def model():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3, bias_initializer="ones")])


def loss(labels, outputs):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs)


def dataset(start, stop):
    x = np.arange(start, stop, dtype="float32")[:, None] * np.ones((1, 2), "float32")
    return tf.data.Dataset.from_tensor_slices((x, np.arange(start, stop) % 4))
"""
SUMMED = """
del loss, optimizer


def model():
    net = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction="sum"))
    return net
"""
FROM_FILES = """
del examples, dataset


def files():
    return ["/one", "/two"]


def read(file):
    raise RuntimeError("no file is read")
"""
NOISY = """

def dataset(start, stop):
    x = np.ones((stop - start, 2), "float32")
    pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    return pairs.map(lambda a, b: (a + tf.random.uniform((2,)), b))
"""
SEEDED = NOISY.replace("uniform((2,))", "uniform((2,), seed=start + 1)")
DRAWING = """

def loss(labels, outputs):
    return (labels - outputs) ** 2 * tf.random.uniform((), seed=1)
"""
STUCK = """

def dataset(start, stop):
    while start > 0:
        pass
    return tf.data.Dataset.from_tensor_slices((np.ones((stop - start, 2), "float32"), np.ones((stop - start, 1))))
"""
ADAPTED = """

words = np.array([f"word {n % 7}" for n in range(N)])
kinds = np.array(["low", "high"])[(np.arange(N) % 7 > 3).astype(int)]
vectors = keras.layers.TextVectorization(output_sequence_length=2)
vectors.adapt(words)
names = keras.layers.StringLookup(vocabulary=["high", "low"])
ranks = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["low", "high"], [0.0, 1.0]), -1.0
)
noise = tf.random.Generator.from_seed(1)


def model():
    text = keras.Input((2,), dtype="int64", name="text")
    kind = keras.Input((), dtype="string", name="kind")
    rows = keras.layers.Flatten()(keras.layers.Embedding(20, 4)(text))
    known = keras.layers.Embedding(3, 2)(names(kind))
    return keras.Model([text, kind], keras.layers.Dense(1)(keras.layers.Concatenate()([rows, known])))


def element(word, kind):
    return (vectors(word), kind), ranks.lookup(kind)[None] + 0.0 * noise.normal([1])


def dataset(start, stop):
    return tf.data.Dataset.from_tensor_slices((words[start:stop], kinds[start:stop])).map(element)


def evaluation():
    return dataset(0, N)
"""
MADE_BEFORE = """

encoder = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(4, name="encoder")])
inputs = keras.Input((2,))
net = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(encoder(inputs))))
net.compile(keras.optimizers.Adam(1e-3), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
net.predict(np.ones((4, 2)), verbose=0)
del loss, optimizer


def model():
    return net
"""
EARLY = """

net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
net.compile("sgd", "mse")
words = compiled = None
{early}
del loss, optimizer


def model():
    if compiled:
        net.compile("sgd", "mse")
    if words is None:
        return net
    inputs = keras.Input((2,))
    rows = keras.layers.Flatten()(words(inputs))
    made = keras.Model(inputs, keras.layers.Dense(1)(rows))
    made.compile("sgd", "mse")
    return made
"""
IN_NO_MODEL = """

encoder = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(4, name="encoder")])


def loss(labels, outputs):
    return keras.losses.mean_squared_error(encoder(labels), encoder(outputs))
"""
DYING = "\nimport os\nprint('on the way')\nos._exit(7)\n"
SMALL = (
    "job: mine\nprogram: mine.py\nepochs: 1\nbatch: 16\nps: {start: 1, min: 1, max:"
    " 4}\nworkers: 1\n"
)
Said = tuple[int, str]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs `weir doctor` on a program's text, optionally with a job file.

    That function returns the exit code and the output.
    """

    def asked(text: str, *words: str, job: str = "") -> Said:
        (tmp_path / "mine.py").write_text(text)
        if job:
            (tmp_path / "mine.yaml").write_text(job)
        code = weir(["doctor", str(tmp_path / "mine.py"), *words])
        return code, capsys.readouterr().out

    return asked


def told(said: str, weight: str) -> list[str]:
    return [
        line.removeprefix(weight).strip() for line in said.splitlines() if line.startswith(weight)
    ]


def test_a_good_program_has_only_fine_findings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert weir(["doctor", str(JOBS / "digits.py")]) == 0

    said = capsys.readouterr().out
    fine = "\n".join(told(said, "fine"))
    assert "imports keras, numpy, sklearn, tensorflow" in fine and "1,437 examples" in fine
    assert "alone, and in another process (24 of 1,437 tried)" in fine
    assert (
        "10 variables with 904 kB, of which sequential/conv2d_2/kernel has 332 kB" in fine
        and "an update takes" in fine
        and "evaluation()" in fine
    )
    assert "of 1 ps the fullest holds 0.00 GiB" in fine
    assert told(said, "wrong") == [] and said.splitlines()[-1] == "nothing wrong, 0 to consider"


def test_silent_mistakes_are_found(doctor) -> None:
    code, said = doctor(HEAD + STRANGE, job=SMALL + "shuffle: off\n")

    wrong, advice = "\n".join(told(said, "wrong")), "\n".join(told(said, "advice"))
    assert code == 1
    assert "differs in another process (" in wrong
    assert (
        "loss() compares every example with every other: (16, 16) of (16,) and (16, 1) and (16, 3)"
        in wrong
    )
    assert "it uses hash()" in advice
    assert "the labels are sorted, and shuffle: off keeps their order" in advice
    assert "idle/kernel, " in advice and "never learns" in advice
    assert "each batch reads all of words/embeddings, 1.28 MB in all" in advice
    assert "ps.max is 4, and more than 1 do not reduce the load of the fullest ps" in advice
    assert said.splitlines()[-1] == f"2 wrong, {len(told(said, 'advice'))} to consider"


def test_missing_class_outputs_and_logits_have_a_remedy(
    doctor,
) -> None:
    code, said = doctor(HEAD + CLASSES, job=SMALL)

    scores, failed = told(said, "wrong")[::-1]
    assert code == 1 and "outside the valid range of [0, 3)" in failed
    assert (
        "-> outputs have 3 classes, counted from 0, and a label is 3: give the last layer an output"
        in said
    )
    assert scores.startswith("mine.py:35: loss() expects probabilities, but outputs range from ")
    assert "-> from_logits=True there, or a last layer with activation='softmax'" in said


def test_an_update_that_cannot_be_made_in_parts_is_made_in_turn(doctor) -> None:
    code, said = doctor(HEAD + SUMMED, job=SMALL + "consistency: global-batch\n")

    (advice,) = [line for line in told(said, "advice") if "in turn" in line]
    assert code == 0
    assert advice.endswith("no faster than one: model() is compiled with the reduction 'sum'")


def test_an_update_can_be_made_in_parts(doctor) -> None:
    code, said = doctor(HEAD, "--consistency", "exact", job=SMALL)

    assert code == 0
    assert "workers can make an update together, each a part of its examples" in said


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (FROM_FILES, "files() cannot have `consistency: exact`"),
        (NOISY, "RuntimeError: Random ops require a seed"),
        (DRAWING, "the training step uses RandomUniform"),
        (SEEDED, "differs when it is read alone"),
    ],
    ids=["files", "unseeded", "step", "seeded"],
)
def test_a_program_that_cannot_be_exact_is_refused_by_name(doctor, more: str, wrong: str) -> None:
    code, said = doctor(HEAD + more, "--consistency", "exact")

    (found,) = told(said, "wrong")
    assert code == 1 and wrong in found


def test_layers_with_vocabularies_and_tables_may_be_made_when_the_program_is_imported(
    doctor,
) -> None:
    code, said = doctor(HEAD + ADAPTED, job=SMALL)

    assert code == 0 and told(said, "wrong") == []
    assert "workers can make an update together" in said and "evaluation()" in said


def test_models_and_optimizers_may_be_made_when_the_program_is_imported(doctor) -> None:
    code, said = doctor(HEAD + MADE_BEFORE, job=SMALL)

    assert code == 0 and told(said, "wrong") == []


def test_a_layer_with_weights_that_belongs_to_no_model_is_refused_by_name(doctor) -> None:
    code, said = doctor(HEAD + IN_NO_MODEL)

    (wrong,) = told(said, "wrong")
    assert code == 1 and "encoder/kernel, which belongs to none of the models" in wrong
    lines = (HEAD + IN_NO_MODEL).splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "encoder(labels)" in text]
    assert wrong.startswith(f"mine.py:{line}: ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("words = keras.layers.Embedding(70_000, 64)", "model() uses the large embedding "),
        ("net.optimizer.build(net.trainable_variables)", "that was used, or loaded with its state"),
        ("compiled = True", "model() compiles a model again that it has returned before"),
    ],
)
def test_what_cannot_be_made_at_import_is_refused(doctor, text: str, why: str) -> None:
    code, said = doctor(HEAD + EARLY.format(early=text))

    (wrong,) = told(said, "wrong")
    assert code == 1 and why in wrong


def test_nan_is_found_in_data_and_weights(doctor) -> None:
    code, said = doctor(HEAD + SPOILT)

    assert code == 1
    assert told(said, "wrong") == [
        "example 3 has a value that is not finite",
        "after two updates the loss is not finite",
    ]


def test_a_failing_function_has_its_line(doctor) -> None:
    code, said = doctor("import nowhere\n" + HEAD)

    assert code == 1
    assert told(said, "wrong") == ["mine.py:1: ModuleNotFoundError: No module named 'nowhere'"]
    assert (
        "install nowhere here and in the job's image" in said
        and "Traceback (most recent call last):" in said
    )


def test_local_modules_are_reported_once_and_not_as_packages(doctor, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def clean(x): return x\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "words.py").write_text("N = 3\n")
    code, said = doctor("from helpers import clean\nimport more.words\n" + HEAD)

    assert code == 1
    assert told(said, "wrong") == [
        "mine.py:1: it imports helpers, which lies beside it",
        "mine.py:2: it imports more, which lies beside it",
    ]
    assert told(said, "fine") == ["it has all functions, and imports keras, numpy, tensorflow"]
    assert told(said, "advice") == [] and "install" not in said


def test_a_hanging_program_has_the_line_where_it_hangs(doctor) -> None:
    code, said = doctor(HEAD + STUCK, "--timeout", "12")

    assert code == 1
    assert told(said, "wrong")[0].startswith(
        "mine.py is stuck: dataset(16, 48) has not returned for 12 s"
    )
    assert "while start > 0:" in said or "pass" in said


def test_a_process_that_exits_early_has_its_output(doctor) -> None:
    code, said = doctor(HEAD + DYING)

    assert code == 1 and told(said, "wrong") == ["its process ended with code 7 before it was done"]
    assert "        | on the way" in said


TAKING = """
import json
import os
from pathlib import Path

from table import COLUMNS

ROWS = len((Path(__file__).parent / "rows.txt").read_text().split())
RELATIVE = open("rows.txt").read()
N = ROWS


def loss(labels, outputs, scale):
    if tf.reduce_sum(labels) < 0:
        return -labels
    return scale * keras.losses.mean_squared_error(labels, outputs)


def optimizer(learning_rate):
    assert json.loads(os.environ["WEIR_" + "PARAMS"]) == {"learning_rate": 0.5, "shift": 1, "scale": 2}
    return keras.optimizers.SGD(learning_rate)


def dataset(start, stop, shift=0.0):
    x = np.arange(start, stop, dtype="float32")[:, None] * np.ones((1, COLUMNS), "float32") / N
    return tf.data.Dataset.from_tensor_slices((x + shift, x[:, :1]))
"""


def test_a_folder_is_tried_with_its_own_files_and_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "main.py").write_text(HEAD + TAKING)
    (folder / "table.py").write_text("COLUMNS = 2\n")
    (folder / "rows.txt").write_text("x " * 64)
    (folder / "big.npy").write_text("x")
    (folder / ".gitignore").write_text("*.npy\n")
    job = SMALL.replace("mine.py", "mine")
    (tmp_path / "mine.yaml").write_text(
        f"{job}params: {{learning_rate: 0.1, shift: 1, scale: 2}}\n"
    )

    code = weir(["doctor", str(folder), "--param", "learning_rate=0.5"])

    said = capsys.readouterr().out
    assert code == 0 and told(said, "wrong") == [], said
    fine = "\n".join(told(said, "fine"))
    assert "main.py and its folder: 4 files" in fine and "leaves out big.npy" in fine
    assert "imports keras, numpy, tensorflow\n" in fine and "64 examples" in fine
    assert "__file__" not in said and "rows.txt" not in said


# ---------------------------------------------------------------- without a trainer process


def test_a_parameter_that_no_function_takes_is_found_without_running_the_program(doctor) -> None:
    code, said = doctor(HEAD, "--param", "learning_rate=0.5")

    assert code == 1
    assert told(said, "wrong") == [
        "params.learning_rate: no function of mine.py takes it; name it where it is used, as in"
        " `def optimizer(learning_rate=...):`"
    ]
    assert "-> correct `params:` in the job's file, or --param" in said


def test_missing_functions_are_reported_without_running_the_program(doctor, tmp_path: Path) -> None:
    code, said = doctor(f"open({str(tmp_path / 'run')!r}, 'w')\ndef model(): ...\n", "--json")

    (only,) = json.loads(said)["findings"]
    assert code == 1 and not (tmp_path / "run").exists()
    assert (
        only["weight"] == "wrong"
        and only["what"] == "mine.py lacks optimizer(), loss(), examples(), dataset()"
    )


def test_a_job_file_selects_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def model(): ...\n")
    (tmp_path / "small.yml").write_text(SMALL.replace("mine.py", "code/mine.py"))

    code, said = (
        weir(["doctor", str(tmp_path / "small.yml"), "--json"]),
        json.loads(capsys.readouterr().out),
    )

    assert code == 1 and said["program"] == str(tmp_path / "code" / "mine.py")
    assert [each["what"] for each in said["findings"]] == [
        "mine.py lacks optimizer(), loss(), examples(), dataset()"
    ]


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        ("job: mine\n", "", "names no program: weir doctor PROGRAM --job "),
        (SMALL, "other.yaml", "is a job's file, and so is other.yaml"),
        (SMALL, "", "mine.py: No such file or directory; `program:` is relative to the job's file"),
        ("- a\n", "", "is not a job request"),
    ],
)
def test_a_job_file_without_a_program_is_wrong_use(
    text: str, more: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(text)

    assert weir(["doctor", str(tmp_path / "mine.yaml"), *(["--job", more] if more else [])]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "# Mine\n\nIt's a table\n",
            "correct it, or give another: a program is a file of Python, or a folder of them",
        ),
        (
            "def model(): ...\n",
            "services/trainer/README.md explains each function",
        ),
    ],
)
def test_unreadable_programs_and_missing_functions_have_different_remedies(
    doctor, text, remedy
) -> None:
    code, said = doctor(text, "--json")

    assert code == 1 and [each["remedy"] for each in json.loads(said)["findings"]] == [remedy]


def test_a_folder_without_a_program_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(["doctor", str(tmp_path)]) == 2
    assert "has no main.py; name the file that has model()" in capsys.readouterr().err


def test_a_missing_program_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weir(["doctor", str(tmp_path / "none.py")]) == 2
    assert "cannot read the program" in capsys.readouterr().err


def test_the_doctor_command_imports_no_tensorflow() -> None:
    text = (
        "import sys, services.cli.doctor; sys.exit('tensorflow' in sys.modules or 'keras' in"
        " sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", text], timeout=120).returncode == 0


def test_the_documented_first_program_has_no_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (JOBS / "README.md").read_text()
    for kind, name in (("python", "wine.py"), ("yaml", "wine.yaml")):
        (tmp_path / name).write_text(page.split(f"```{kind}\n")[1].split("```")[0])

    code, said = weir(["doctor", str(tmp_path / "wine.py")]), capsys.readouterr().out

    assert (code, said.splitlines()[-1]) == (0, "nothing wrong, 0 to consider"), said


FILES = """

del examples, dataset


def files():
    return [{folder!r} + name for name in ("/a.csv", "/b.csv")]


def read(file):
    rows = tf.data.experimental.CsvDataset(file, [tf.float32] * 3)
    return rows.map(lambda *row: (tf.stack(row[:2]), tf.stack(row[2:])))
"""


def test_a_program_that_reads_files_is_tried(doctor, tmp_path: Path) -> None:
    for name, count in (("a.csv", 3), ("b.csv", 40)):
        (tmp_path / name).write_text("1,2,3\n" * count)
    program = HEAD + FILES.format(folder=str(tmp_path))
    code, said = doctor(program, job=SMALL)
    assert code == 0, said
    fine = "\n".join(told(said, "fine"))
    assert "2 files" in fine and "an update takes" in fine
    (tmp_path / "a.csv").unlink()
    code, said = doctor(program, job=SMALL)
    assert code == 1 and "a.csv" in "\n".join(told(said, "wrong"))
