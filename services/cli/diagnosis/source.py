"""What the text of a program gives away, before anything of it is run. Pure.

Only the one file travels, and Weir makes cluster, strategy and batches; these are the traps in
which others were caught who brought a script that had run by itself.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator

from services.cli.diagnosis.finding import Finding, advice, wrong

SHIPPED = {"h5py", "joblib", "keras", "numpy", "scipy", "sklearn", "tensorflow"}
"""What Weir's own trainer image has, of what a program may want."""
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


def imported(tree: ast.Module) -> list[str]:
    """The first names of the modules that it imports, without Python's own, sorted."""
    return sorted(_lines(tree).keys() - set(sys.stdlib_module_names))


def _lines(tree: ast.Module) -> dict[str, int]:
    """Each with the first line that imports it."""
    every = [(name.split(".")[0], line) for node in ast.walk(tree) for name, line in _modules(node)]
    return dict(sorted(every, key=lambda each: each[1], reverse=True))


def of_source(
    tree: ast.Module, name: str, beside: Collection[str], image: str | None
) -> Iterator[Finding]:
    """`beside`: names of what lies in the program's folder and could be imported from there;
    `image`: the job's.
    """
    names, lines = imported(tree), _lines(tree)
    for each in (each for each in names if each in beside):
        remedy = f"only {name} is uploaded: put what it needs of {each} into it"
        yield wrong(f"{name}:{lines[each]}: it imports {each}, which lies beside it", remedy)
    lacking = [each for each in names if each not in {*SHIPPED, *beside}]
    if lacking and image is None:
        what = f"it imports {', '.join(lacking)}, which Weir's trainer image lacks"
        yield advice(
            what,
            "in a cluster name an `image:` that has it, which WEIR_ALLOCATOR_IMAGES must allow",
        )
    yield from _traps(tree, name)


def _modules(node: ast.AST) -> Iterable[tuple[str, int]]:
    if isinstance(node, ast.Import):
        return [(alias.name, node.lineno) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [(node.module, node.lineno)]
    return []


def _traps(tree: ast.Module, name: str) -> Iterator[Finding]:
    """Each kind once, at its first line."""
    told = set[str]()
    for node in ast.walk(tree):
        for what, remedy in _trap(node):
            if what not in told:
                told.add(what)
                yield advice(f"{name}:{getattr(node, 'lineno', 1)}: {what}", remedy)


def _trap(node: ast.AST) -> Iterator[tuple[str, str]]:
    word = _word(node)
    if word in OWN_CLUSTER or word.endswith("Strategy"):
        yield (
            f"it uses {word}",
            "Weir makes the cluster and the strategy; what a program makes trains beside them",
        )
    if word in PARTITIONERS:
        remedy = "a partitioned Keras 3 variable does not restore under another number of ps; use several tables"
        yield f"it uses {word}", remedy
    if word == "__file__":
        yield (
            "it uses __file__",
            "a pod holds the program alone; data is on a volume, at a path from /",
        )
    if isinstance(node, ast.Call):
        yield from _call(node)


def _call(node: ast.Call) -> Iterator[tuple[str, str]]:
    called, first = _word(node.func), node.args[0] if node.args else None
    if isinstance(node.func, ast.Name) and called == "hash":
        yield (
            "it uses hash(), which differs between processes for texts",
            "zlib.crc32(text.encode()) does not",
        )
    if called in READERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
        path = first.value
        if not path.startswith("/") and "://" not in path:
            yield (
                f"it reads {path!r}, a path from where it runs",
                "a pod runs in a folder of its own; begin it with /",
            )


def _word(node: ast.AST) -> str:
    """The name that a node brings into play."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return name
        case ast.Constant(value="TF_CONFIG"):
            return "TF_CONFIG"
    return ""
