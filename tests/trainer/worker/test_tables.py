"""Tests of divided tables on parameter servers: any number of ps has the same bits, and a process
without Weir restores the checkpoint.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from services.__main__ import weir
from services.trainer import program
from services.trainer.worker import stored_checkpoints
from shared.checkpoints import COMMITTED, CommitMark
from tests.trainer.file_size import file_size_limit
from tests.trainer.script import PROGRAMS, run_script

UNDER = [1, 2, 4, 3, 7, 1]


def run(ps: int, before: str, folder: Path, *options: str, script: str = "tables_across.py") -> Any:
    return run_script(script, str(ps), before, str(folder), *options)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the outputs of a training on these numbers of ps, each in a process of its own."""
    folder, before, said = tmp_path_factory.mktemp("tables"), "-", []
    for ps in UNDER:
        said.append(run(ps, before, folder))
        before = said[-1]["path"]
    return said


@pytest.mark.parametrize(
    "at", range(1, len(UNDER)), ids=[f"{n}-to-{m}" for n, m in pairwise(UNDER)]
)
def test_tables_and_slots_are_restored_bit_equal(trainings: list[Any], at: int) -> None:
    assert trainings[at]["restored"] == trainings[at - 1]["written"]
    assert len(trainings[at]["restored"]) == 14


def test_a_checkpoint_with_whole_tables_is_restored_into_divided_ones(tmp_path: Path) -> None:
    """Earlier versions divide no table."""
    whole = run(2, "-", tmp_path, "whole")
    divided = run(3, whole["path"], tmp_path)

    # The names of slots differ, and their order is the same.
    assert list(divided["restored"].values()) == list(whole["written"].values())


def test_training_changes_tables_and_slots(trainings: list[Any]) -> None:
    for said in trainings:
        changed = {
            name.partition("/")[2]
            for name, value in said["written"].items()
            if value != said["restored"][name]
        }
        assert sum("embeddings" in name for name in changed) == 6, "two tables with two slots each"


def test_tables_are_spread_evenly(trainings: list[Any]) -> None:
    for ps, said in zip(UNDER, trainings, strict=True):
        if ps > 1:
            assert len(said["held"]) == ps
            assert max(said["held"]) <= 1.05 * np.mean(said["held"])


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the outputs of a training on 2, 3 and 1 ps that writes bases and deltas. Each reads
    the tables of the first checkpoint before it, and then the last one.
    """
    folder, before, said = tmp_path_factory.mktemp("deltas"), "-", []
    for ps in (2, 3, 1):
        said.append(run(ps, before, folder, script="tables_deltas.py"))
        before = ",".join(said[-1]["paths"])
    return said


@pytest.mark.parametrize("at", [1, 2])
def test_a_base_and_deltas_are_restored_bit_equal(deltas: list[Any], at: int) -> None:
    assert deltas[at]["restored"] == deltas[at - 1]["written"]


def test_a_checkpoint_names_its_base_and_the_deltas_since(deltas: list[Any]) -> None:
    first, second, third = deltas
    assert first["files"] == ["gen-2/base-2", "gen-2/ckpt-3"]
    assert second["files"] == [*first["files"], "gen-3/ckpt-4", "gen-3/ckpt-6"]
    assert third["files"] == [*second["files"], "gen-1/ckpt-7", "gen-1/ckpt-9"]


def test_a_delta_has_only_the_rows_that_changed(deltas: list[Any]) -> None:
    for said in deltas:
        base, *changed = said["rows"]
        assert base == 210_004
        assert all(16 < rows <= 2 * 16 * 6 for rows in changed)


def test_a_delta_is_written_in_blocks_beside_training(deltas: list[Any]) -> None:
    for ps, said in zip((2, 3, 1), deltas, strict=True):
        assert said["data files"] > 3 * ps + (1 + ps), "1 + ps: for the rest of the model"


def test_only_the_files_after_those_that_are_there_are_read(deltas: list[Any]) -> None:
    first, second, third = deltas
    assert third["read"] == second["rows"]

    # Another base has taken the place of the first one and of the delta that was read.
    assert second["read"][0] == first["rows"][0]
    assert second["read"][2:] == first["rows"][1:]
    assert len(second["read"]) == 3


@pytest.fixture(scope="module")
def damage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the output of a training with late bases and damaged files, on 2 ps."""
    return run_script("tables_damaged.py", str(tmp_path_factory.mktemp("damaged")))


def test_a_checkpoint_needs_no_base_that_is_newer_than_its_cut(damage: Any) -> None:
    assert damage["files"] == {
        "ckpt-5": ["base-4", "ckpt-3", "ckpt-5"],
        "ckpt-3": ["base-0", "ckpt-1", "ckpt-2", "ckpt-3"],
        "ckpt-2": ["base-0", "ckpt-1", "ckpt-2"],
        "ckpt-1": ["base-0", "ckpt-1"],
    }
    assert damage["restored"] == [True] * 7


def test_the_last_checkpoint_with_an_earlier_base_is_kept(damage: Any) -> None:
    assert damage["kept"] == [
        *("base-4", "base-6", "ckpt-3", "ckpt-5", "ckpt-6", "ckpt-7", "ckpt-8")
    ]


def test_all_rows_are_written_if_a_ps_cannot_hold_those_that_have_changed(damage: Any) -> None:
    assert (damage["is delta"], damage["whole"]) == (False, ["ckpt-9"])
    assert not damage["is late base used"], "the checkpoint has all rows, and newer ones"


def test_a_delta_stays_until_all_rows_are_written_at_the_same_step(damage: Any) -> None:
    assert "File too large" in damage["full"]
    assert damage["delta after a full disk"]
    assert damage["in its place"] == ["ckpt-8"]


def test_a_damaged_delta_or_base_is_skipped_for_an_exact_older_checkpoint(damage: Any) -> None:
    assert damage["newest damaged"] == ["ckpt-7", True, ["ckpt-8"]]
    assert damage["base damaged"] == ["ckpt-6", True, ["ckpt-8", "ckpt-7"]]


def test_a_storage_that_does_not_answer_is_asked_again_and_loses_nothing(damage: Any) -> None:
    assert "Too many levels of symbolic links" in damage["unreadable"]
    name, is_same, skipped = damage["readable again"]
    assert (is_same, skipped) == (True, []) and name == damage["newest"]
    assert damage["nothing removed"]


def test_a_rehearsal_changes_nothing(deltas: list[Any]) -> None:
    for said in deltas:
        assert said["rehearsed"] == said["restored"]


def test_weir_refuses_a_delta_and_names_the_command_that_merges_it(
    deltas: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, folder = deltas[1], tmp_path / "job"
    shutil.copytree(Path(said["paths"][-1]).parents[1], folder)
    path = f"{folder}/{said['files'][-1]}"
    assert weir(["checkpoints", path]) == 1
    shown, error = capsys.readouterr()
    assert f"needs {said['files'][0]} (" in shown
    command = error.strip().rpartition("weir ")[2]
    assert weir(shlex.split(command)) == 0
    output = f"{path}-merged"
    assert f"{output}: whole, " in capsys.readouterr().out

    plain = program_module()
    model, optimizer = plain.model(), plain.optimizer()
    optimizer.build(model.trainable_variables)
    restored = tf.train.Checkpoint(model=model, optimizer=optimizer).read(output)
    restored.assert_existing_objects_matched().expect_partial()
    values = [each.numpy() for each in (*model.variables, *optimizer.variables)]
    digests = [hashlib.sha256(np.atleast_1d(each).tobytes()).hexdigest() for each in values]
    assert digests == list(said["written"].values())


def test_weir_lists_the_checkpoints_of_a_job_and_of_a_generation(
    deltas: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, folder = deltas[1], tmp_path / "default" / "tables-1"
    shutil.copytree(Path(said["paths"][-1]).parents[1], folder)
    (folder / "gen-99").mkdir()
    generations = [str(each) for each in folder.glob("gen-*")]

    of_job = [each.path for each in stored_checkpoints.main("list", str(folder)).checkpoints]
    assert f"{folder}/{said['files'][-1]}" in of_job
    for path in generations:
        answer = stored_checkpoints.main("list", path)
        assert [each.path for each in answer.checkpoints] == [
            each for each in of_job if each.startswith(f"{path}/")
        ]

    (folder / "job").mkdir()
    (folder / "job" / "request.json").write_text("{}")
    assert weir(["checkpoints", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert weir(["checkpoints", "--merge", str(tmp_path / "merged")]) == 2
    assert "--merge needs PATH" in capsys.readouterr().err


def test_only_a_delta_is_merged_and_only_with_all_files(deltas: list[Any], tmp_path: Path) -> None:
    said, folder = deltas[1], tmp_path / "job"
    shutil.copytree(Path(said["paths"][-1]).parents[1], folder)
    delta = f"{folder}/{said['files'][-1]}"
    whole = stored_checkpoints.main("merge", f"{folder}/{said['files'][0]}", f"{tmp_path}/merged")
    (folder / f"{said['files'][-2]}.index").unlink()
    lacking = stored_checkpoints.main("merge", delta, f"{tmp_path}/merged")

    assert "nothing has to be merged" in whole.error
    assert f"it needs {folder}/{said['files'][-2]}: it is missing" in lacking.error
    assert not list(tmp_path.glob("merged*"))


def test_a_merge_that_fails_removes_what_it_has_written_and_nothing_else(
    deltas: list[Any], tmp_path: Path
) -> None:
    said = deltas[1]
    delta = f"{Path(said['paths'][-1]).parents[1]}/{said['files'][-1]}"
    program = tmp_path / "merged.py"
    program.write_text("# a file of the user")

    with file_size_limit(8 * 2**20):  # less than a table
        full = stored_checkpoints.main("merge", delta, f"{tmp_path}/merged")
    left = list(tmp_path.iterdir())
    (tmp_path / "merged.data-00000-of-00001").touch()
    twice = stored_checkpoints.main("merge", delta, f"{tmp_path}/merged")

    assert "File too large" in full.error
    assert left == [program]
    assert twice.error == f"{tmp_path}/merged.data-00000-of-00001 exists"


def test_a_delta_that_was_replaced_is_not_merged(deltas: list[Any], tmp_path: Path) -> None:
    """The mark beside it has the digest of its files."""
    said, folder = deltas[1], tmp_path / "job"
    shutil.copytree(Path(said["paths"][-1]).parents[1], folder)
    delta = f"{folder}/{said['files'][-1]}"
    mark = CommitMark(digest="sha256-0", samples=1, total_samples=1)
    Path(f"{delta}{COMMITTED}").write_bytes(msgspec.json.encode(mark))

    replaced = stored_checkpoints.main("merge", delta, f"{tmp_path}/merged")

    assert f"{delta} cannot be merged: " in replaced.error


def program_module() -> Any:
    path = PROGRAMS / "two_tables.py"
    return program.load(path, program.program_digest(path.read_bytes()))


def test_a_process_without_weir_restores_the_checkpoint(trainings: list[Any]) -> None:
    plain = program_module()
    model = plain.model()
    restored = tf.train.Checkpoint(model=model).read(trainings[-1]["path"])
    restored.assert_existing_objects_matched().expect_partial()

    inputs, labels = next(iter(plain.evaluation().batch(plain.EXAMPLES)))
    outputs = model(inputs)
    (auc,) = plain.metrics()
    auc.update_state(labels, outputs)

    found = trainings[-1]["evaluation"]
    assert found["loss"] == pytest.approx(np.mean(plain.loss(labels, outputs)), abs=1e-6)
    assert found["auc"] == pytest.approx(float(auc.result()), abs=1e-6)
