"""The findings of `weir doctor` about a program: from its text, and from two processes that ran it.

The text shows imports that a pod would lack, because only the program's own files are uploaded. It
also shows code of scripts that ran by themselves, such as their own cluster and strategy, which
Weir makes. For the findings from the processes see `observations.py`.

For a loss that does not fit its labels and outputs, a remedy is given only if the shapes, or the
library's own message, leave one meaning.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from services.trainer.doctor.observations import Observations, Shape
from shared.text import format_count, format_names

Weight = Literal["fine", "advice", "wrong"]
"""`wrong`: the job would fail or train something else; `advice`: it would be slower or larger."""
MAX_NAMES = 4
"""Maximum number of examples or variables that a finding names."""
SLOW_READ_S = 0.05
"""Seconds. A batch that is read faster delays no worker noticeably."""
WHOLE_BYTES = 1e6
"""A smaller table that is read as a whole costs little more than the rest of a model."""
SHUFFLE = "leave out `shuffle: off`"
MAKE_PURE = (
    "make dataset() a pure function of the numbers, and read() of the file: "
    "a fixed seed, a sorted listing, no shuffle inside it"
)
NO_MODULE = r"ModuleNotFoundError: No module named '([\w.]+)'"
REMEDIES = (
    (NO_MODULE, "install {0} here and in the job's image"),
    (
        r"FileNotFoundError|NotFoundError",
        "a pod has only the program: read data from a volume, with an absolute path; a small file"
        " may lie in the folder of the program: Path(__file__).parent / NAME",
    ),
    (
        r"attempted relative import with no known parent package",
        "import without the dot: the folder of the program is on Python's path",
    ),
    (r"is it batched", "take .batch(...) out of dataset()"),
    (
        r"is stuck: ",
        "a call of the program must return; a pod does not have what it waits for either",
    ),
    (
        r"Random ops require a seed",
        "with `consistency: exact` random numbers come from the number of the example:"
        " tf.random.stateless_uniform in dataset(), keras.random.SeedGenerator in model()",
    ),
    (
        r"`consistency: exact`|[Dd]eterminis",
        "change it, or take `consistency: global-batch`",
    ),
    (
        r"SIGKILL",
        "use more memory or smaller tables: model() is built twice in this process",
    ),
)
FIX_PROGRAM = "fix it: a job would fail with this cause"
IMAGE_MODULES = {"h5py", "joblib", "keras", "numpy", "scipy", "sklearn", "tensorflow"}
"""The modules in Weir's own trainer image that a program may need."""
TAKEN_NAMES = IMAGE_MODULES | {"services", "shared"} | set(sys.stdlib_module_names)
"""Modules that a trainer has imported, or may import, before the program does."""
OWN_CLUSTER = {"TF_CONFIG", "ClusterCoordinator", "TFConfigClusterResolver", "ClusterSpec"}
PARTITIONERS = {
    "variable_partitioner",
    "FixedShardsPartitioner",
    "MinSizePartitioner",
    "MaxSizePartitioner",
}
READERS = {
    "open",
    "load",
    "loadtxt",
    "genfromtxt",
    "read_csv",
    "read_parquet",
    "read_json",
    "Path",
    "TFRecordDataset",
}
TRAINS_BY = {
    "compiled": "the loss and the optimizer with which model() compiles the model",
    "model": "the train_step of its model",
    "program": "its own train_step()",
}
"""The ways in which a program trains without loss()."""
LOSS = "loss"
CROSS_ENTROPY = re.compile(r"(sparse_)?(categorical|binary)_?crossentropy", re.IGNORECASE)
OF_SHAPE = re.compile(
    r"Incompatible shapes|Dimensions must be equal|must have the same (shape|rank)"
)
NUMBERS = "labels are numbers of classes, which keras.losses.sparse_categorical_crossentropy takes"
ONE_HOT = "labels have a number for each class, which keras.losses.categorical_crossentropy takes"
LOSS_REMEDIES = (
    (
        r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)",
        (
            "outputs have {1} classes, counted from 0, and a label is {0}: "
            "give the last layer an output for each class"
        ),
    ),
    (
        (
            r"(?s)target\.shape=\((\w+),\), output\.shape=\(\1,"
            r" (?!1\))\d+\).*\bcategorical_crossentropy"
        ),
        NUMBERS,
    ),
    (
        r"`target\.ndim - 1`\. Received: target\.shape=\((\w+), (\d+)\), output\.shape=\(\1, \2\)",
        ONE_HOT,
    ),
)
"""A library's message, and the remedy."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `more`: details such as a traceback. `remedy`: the action to take; empty for a
    good finding.
    """

    weight: Weight
    what: str
    remedy: str = ""
    more: str = ""


def fine_finding(what: str) -> Finding:
    return Finding(weight="fine", what=what)


def advice_finding(what: str, remedy: str) -> Finding:
    return Finding(weight="advice", what=what, remedy=remedy)


def wrong_finding(what: str, remedy: str, more: str = "") -> Finding:
    return Finding(weight="wrong", what=what, remedy=remedy, more=more)


def format_bytes(count: float) -> str:
    """Return bytes in the largest unit with a whole number in front: `332 kB`, `1.38 GB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def program_findings(
    here: Observations, there: Observations, rows_example: str, left: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield the findings from two processes: `here` tried everything, `there` only read examples.

    `left`: modules that are already reported as not uploaded; failing to import one is not reported
    again. `rows_example`: path of an example that looks up rows.
    """
    if here.loaded_s is not None and here.examples is not None:
        yield fine_finding(f"imported in {here.loaded_s:.1f} s; {_data_size(here)}")
    if here.read_s is not None:
        yield from _example_findings(here, there)
    if here.variables is not None:
        yield from _model_findings(here, rows_example)
    if here.update_s is not None:
        yield from _update_findings(here, here.update_s)
    yield from _part_findings(here)
    if here.evaluated is not None:
        absent = "it has no evaluation(), so the finished job has no metrics"
        yield fine_finding("evaluation() and metrics() work" if here.evaluated else absent)
    cause = here.failed or there.failed
    if cause and _missing_module(cause) not in left:
        yield failure_finding(cause, here)


def _data_size(here: Observations) -> str:
    if not here.files:
        return format_count(here.examples or 0, "example")
    said = f"; {format_count(here.expected, 'example')} an epoch" if here.expected else ""
    return f"{format_count(here.files, 'file')}{said}"


def _missing_module(cause: str) -> str:
    """Return the first part of the name of a module that was not found."""
    found = re.search(NO_MODULE, cause)
    return found[1].split(".")[0] if found else ""


def failure_finding(cause: str, here: Observations) -> Finding:
    head, _, more = cause.partition("\n")
    remedy = loss_remedy(cause, here) or _known_remedy(cause)
    return wrong_finding(head, remedy, more)


def _known_remedy(cause: str) -> str:
    for pattern, remedy in REMEDIES:
        match = re.search(pattern, cause)
        if match:
            return remedy.format(*match.groups())
    return FIX_PROGRAM


# ---------------------------------------------------------------- examples


def _example_findings(here: Observations, there: Observations) -> Iterator[Finding]:
    tried = f"({len(here.together)} of {here.examples:,} tried)"
    differ_alone = _differing_examples(here.together, here.alone)
    differ_there = []
    if there.read_s is not None:
        differ_there = _differing_examples(here.together, there.together)
    if differ_alone:
        what = f"example {_format_numbers(differ_alone)} differs when it is read alone {tried}"
        yield wrong_finding(what, MAKE_PURE)
    elif differ_there:
        what = f"example {_format_numbers(differ_there)} differs in another process {tried}"
        yield wrong_finding(what, f"{MAKE_PURE}, and no hash() of a text")
    elif there.read_s is not None:
        same = "the same example for the same number, in a batch, alone, and in another process"
        yield fine_finding(f"{same} {tried}")
    if here.infinite:
        what = f"example {_format_numbers(here.infinite)} has a value that is not finite"
        yield wrong_finding(what, "clean the data: one such batch makes all weights NaN")
    if here.ordered:
        what = (
            "the labels are sorted, and shuffle: off keeps their order: "
            "the model forgets a class while it learns the next"
        )
        yield advice_finding(what, SHUFFLE)


def _format_numbers(numbers: Sequence[int]) -> str:
    return format_names([str(number) for number in numbers], MAX_NAMES)


def _differing_examples(one: dict[int, str], other: dict[int, str]) -> list[int]:
    return sorted(number for number in one if other.get(number, one[number]) != one[number])


# ---------------------------------------------------------------- the model, and an update of it


def _model_findings(here: Observations, rows_example: str) -> Iterator[Finding]:
    yield _size_finding(here)
    if here.kind in TRAINS_BY:
        yield fine_finding(f"it trains by {TRAINS_BY[here.kind]}")
    yield from _variable_findings(here, rows_example)
    if here.scheduled:
        what = (
            "the learning rate is a schedule of updates, "
            "and a larger batch means fewer updates in an epoch"
        )
        remedy = "give the optimizer a number, or keep batch.min and batch.max equal"
        yield advice_finding(what, remedy)
    if here.lossy or here.mixed:
        parts = " and ".join(str(shape) for shape in (*here.labels, *here.outputs))
        found = here.lossy or "the mean"
        what = f"loss() compares every example with every other: {found} of {parts}"
        hint = shape_hint(here.labels, here.outputs)
        remedy = hint or "give labels and outputs the same shape, or use keras.losses"
        yield wrong_finding(what, remedy)


def _size_finding(here: Observations) -> Finding:
    variables = here.variables or ()
    total = format_bytes(sum(v.bytes for v in variables))
    what = f"the model has {format_count(len(variables), 'variable')} with {total}"
    if variables:
        largest = max(variables, key=lambda v: v.bytes)
        what += f", of which {largest.name} has {format_bytes(largest.bytes)}"
    if here.slots:
        what += f"; the optimizer keeps {format_bytes(here.slots)} beside them"
    return fine_finding(what)


def _variable_findings(here: Observations, rows_example: str) -> Iterator[Finding]:
    variables = here.variables or ()
    idle = [v.name for v in variables if v.learns is False]
    if idle:
        what = f"{format_names(idle, MAX_NAMES)} never learns: the loss does not depend on it"
        yield advice_finding(what, "leave it out of model(), or use it")
    whole = [v for v in variables if v.whole and v.bytes >= WHOLE_BYTES]
    if whole:
        names = format_names([v.name for v in whole], MAX_NAMES)
        total = format_bytes(sum(v.bytes for v in whole))
        remedy = (
            "use keras.layers.Embedding, or look rows up with tf.gather(table, ids) and name the "
            f"table in row_lookup_weights ({rows_example})"
        )
        if here.combines_rows:
            remedy += (
                ", with an optimizer that updates single rows, such as Adagrad or Adam: "
                f"{here.combines_rows} may combine the rows of a table"
            )
        yield advice_finding(f"each batch reads all of {names}, {total} in all", remedy)


def _update_findings(here: Observations, update_s: float) -> Iterator[Finding]:
    if not here.finite:
        part = "the loss is" if here.loss is None else "weights are"
        remedy = "check the data, from_logits, and the learning rate (too large?)"
        yield wrong_finding(f"after two updates {part} not finite", remedy)
    else:
        yield fine_finding(
            f"an update takes {update_s * 1000:.0f} ms here, at a loss of {here.loss:.4g}"
        )
    read_s = here.read_s or 0.0
    if read_s > max(SLOW_READ_S, update_s):
        what = f"a batch is read in {read_s * 1000:.0f} ms, longer than its update takes"
        yield advice_finding(
            what,
            "load data once, outside of dataset(), which is called again and again, and let "
            "tf.data read in parallel (num_parallel_calls)",
        )


def _part_findings(here: Observations) -> Iterator[Finding]:
    if here.parts:
        yield fine_finding("workers can make an update together, each a part of its examples")
    if here.whole_batch:
        what = f"workers have to make updates in turn, no faster than one: {here.whole_batch}"
        remedy = "let the step and the loss be means over examples, or use one worker"
        yield advice_finding(what, remedy)


def imported_modules(trees: Iterable[ast.Module]) -> list[str]:
    """Return the top-level modules that the files of a program import, without the standard
    library, sorted.
    """
    names = {name for tree in trees for name in _import_lines(tree)}
    return sorted(names - set(sys.stdlib_module_names))


def _import_lines(tree: ast.Module) -> dict[str, int]:
    """Return each module with the first line that imports it."""
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        for name, line in _modules_of_import(node):
            module = name.split(".")[0]
            lines[module] = min(line, lines.get(module, line))
    return lines


def source_findings(
    tree: ast.Module,
    name: str,
    beside: Collection[str],
    own: Collection[str],
    image: str | None,
    files: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield the findings from the text of one file. `beside`: modules in the folder of a program
    that is a single file; `own`: modules of a program of several files, and `files`: their paths;
    `image`: the job's.
    """
    names, lines = imported_modules([tree]), _import_lines(tree)
    for each in names:
        if each in beside:
            what = f"{name}:{lines[each]}: it imports {each}, which lies beside it"
            remedy = f"only {name} is uploaded: give its folder as the program, FOLDER:{name}"
            yield wrong_finding(what, remedy)
    for each in sorted(set(own) & TAKEN_NAMES):
        if each in lines:
            what = f"{name}:{lines[each]}: it imports {each}, and Weir's image has another {each}"
            yield wrong_finding(what, f"give its own {each} another name")
    lacking = [each for each in names if each not in {*IMAGE_MODULES, *beside, *own}]
    if lacking and image is None:
        what = f"it imports {', '.join(lacking)}, which Weir's trainer image lacks"
        yield advice_finding(
            what,
            "in a cluster name an `image:` that has it, which WEIR_ALLOCATOR_IMAGES must allow",
        )
    yield from _trap_findings(tree, name, files if own else ())


def _modules_of_import(node: ast.AST) -> Iterable[tuple[str, int]]:
    if isinstance(node, ast.Import):
        return [(alias.name, node.lineno) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [(node.module, node.lineno)]
    return []


def _trap_findings(tree: ast.Module, name: str, files: Collection[str]) -> Iterator[Finding]:
    """Yield each kind of trap once, at its first line. `files`: those of a program of several."""
    told = set[str]()
    for node in ast.walk(tree):
        for what, remedy in _traps_of_node(node, files):
            if what not in told:
                told.add(what)
                yield advice_finding(f"{name}:{getattr(node, 'lineno', 1)}: {what}", remedy)


def _traps_of_node(node: ast.AST, files: Collection[str]) -> Iterator[tuple[str, str]]:
    word = _used_name(node)
    if word in OWN_CLUSTER or word.endswith("Strategy"):
        yield (
            f"it uses {word}",
            "Weir makes the cluster and the strategy; the job does not use the program's",
        )
    if word in PARTITIONERS:
        remedy = (
            "a partitioned Keras 3 variable does not restore under another number of ps; "
            "use several tables"
        )
        yield f"it uses {word}", remedy
    if word == "__file__" and not files:
        yield (
            "it uses __file__",
            "only this file is uploaded: give its folder as the program if it reads small files "
            "there; other data is on a volume, with an absolute path",
        )
    if isinstance(node, ast.Call):
        yield from _traps_of_call(node, files)


def _traps_of_call(node: ast.Call, files: Collection[str]) -> Iterator[tuple[str, str]]:
    called, first = _used_name(node.func), node.args[0] if node.args else None
    if isinstance(node.func, ast.Name) and called == "hash":
        yield (
            "it uses hash(), which differs between processes for strings",
            "zlib.crc32(text.encode()) does not",
        )
    if called in READERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
        path = first.value
        if not path.startswith("/") and "://" not in path and path not in files:
            yield (
                f"it reads {path!r}, a relative path",
                "a pod runs in its own folder: use an absolute path",
            )


def _used_name(node: ast.AST) -> str:
    """Return the name that a node uses."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return name
        case ast.Constant(value="TF_CONFIG"):
            return "TF_CONFIG"
    return ""


def loss_remedy(cause: str, here: Observations) -> str:
    """Return the remedy for a failure in loss(); empty if it is not certain."""
    for pattern, remedy in LOSS_REMEDIES:
        match = re.search(pattern, cause)
        if match:
            return remedy.format(*match.groups())
    if OF_SHAPE.search(cause) and f"in {LOSS}\n" in cause:
        return shape_hint(here.labels, here.outputs)
    return ""


def shape_hint(labels: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> str:
    """Return how to make the two shapes equal, if one lacks an axis of one or the last axes
    differ.
    """
    if len(labels) != 1 or len(outputs) != 1:
        return ""
    label, output = labels[0], outputs[0]
    both = f"labels are {label} and outputs {output}"
    if output == (*label, 1):
        return f"{both}: take {_with_axis('labels', label)} in loss()"
    if label == (*output, 1):
        return f"{both}: take {_with_axis('outputs', output)} in loss()"
    if len(label) > 1 and label[:-1] == output[:-1] and label[-1] != output[-1]:
        numbers = f"a label has {label[-1]} numbers and an output {output[-1]}"
        return f"{numbers}: give the last layer {label[-1]}"
    return ""


def _with_axis(name: str, shape: Shape) -> str:
    return f"{name}[{', '.join([':'] * len(shape))}, None]"


# ---------------------------------------------------------------- probabilities


def probability_findings(tree: ast.Module, name: str, here: Observations) -> Iterator[Finding]:
    """Report a cross-entropy without `from_logits` whose outputs are outside 0 and 1."""
    line = probability_loss_line(tree)
    if not line or not here.span:
        return
    low, high = here.span
    if low >= 0.0 and high <= 1.0:
        return
    numbers = f"outputs range from {low:.3g} to {high:.3g}"
    remedy = (
        "from_logits=True there, or a last layer with activation='softmax' "
        "('sigmoid' for one output)"
    )
    yield wrong_finding(f"{name}:{line}: loss() expects probabilities, but {numbers}", remedy)


def probability_loss_line(tree: ast.Module) -> int | None:
    """Return the line of such a call in a simple loss(); None if there is none."""
    function = _loss_function(tree)
    if function is None:
        return None
    outputs = function.args.args[1].arg
    if _is_reassigned(function, outputs):
        return None
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or len(call.args) != 2:
            continue
        names = [each.id for each in call.args if isinstance(each, ast.Name)]
        if names[-1:] == [outputs] and _is_cross_entropy(call):
            return call.lineno
    return None


def _loss_function(tree: ast.Module) -> ast.FunctionDef | None:
    """Return the program's last loss(labels, outputs), if it is a plain function."""
    found = None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == LOSS and len(node.args.args) == 2:
            found = node
    return found


def _is_cross_entropy(call: ast.Call) -> bool:
    """Match `keras.losses.binary_crossentropy(..., ...)` and
    `keras.losses.BinaryCrossentropy()(..., ...)`.
    """
    maker = call.func if isinstance(call.func, ast.Call) else call
    if maker is not call and maker.args:
        return False
    given = {keyword.arg for keyword in (*call.keywords, *maker.keywords)}
    named = ast.unparse(maker.func)
    ours = named.startswith(("keras.", "tf.keras."))
    return (
        ours
        and bool(CROSS_ENTROPY.fullmatch(named.rpartition(".")[2]))
        and not given & {"from_logits", None}
    )


def _is_reassigned(function: ast.FunctionDef, name: str) -> bool:
    """Return whether the function assigns this name."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Store) for node in names)
