"""Which checkpoints stay: those that the ledger names."""

from __future__ import annotations

from pathlib import Path

from services.trainer.retention import prune


def saved(folder: Path, generation: int, step: int, parts: int = 2) -> str:
    path = folder / f"gen-{generation}" / f"ckpt-{step}"
    path.parent.mkdir(exist_ok=True)
    for name in (".index", *(f".data-0000{p}-of-0000{parts}" for p in range(parts))):
        path.with_name(path.name + name).touch()
    return str(path)


def left(folder: Path) -> set[str]:
    return {str(index.with_suffix("")) for index in folder.glob("gen-*/ckpt-*.index")}


def test_what_the_ledger_names_stays_and_the_rest_goes(tmp_path: Path) -> None:
    paths = [saved(tmp_path, 1, 10), saved(tmp_path, 1, 20), saved(tmp_path, 2, 30)]

    prune(tmp_path, paths[1:])

    assert left(tmp_path) == set(paths[1:])


def test_no_part_of_a_checkpoint_that_goes_is_left(tmp_path: Path) -> None:
    kept = saved(tmp_path, 1, 1)
    saved(tmp_path, 1, 10, parts=4)

    prune(tmp_path, [kept])

    assert {p.name.split(".")[0] for p in (tmp_path / "gen-1").iterdir()} == {"ckpt-1"}


def test_a_step_whose_number_begins_like_another_is_not_mistaken_for_it(tmp_path: Path) -> None:
    saved(tmp_path, 1, 1)
    kept = saved(tmp_path, 1, 10)

    prune(tmp_path, [kept])

    assert left(tmp_path) == {kept} and len(list((tmp_path / "gen-1").iterdir())) == 3


def test_a_generations_folder_goes_when_it_is_empty(tmp_path: Path) -> None:
    saved(tmp_path, 1, 10)
    kept = saved(tmp_path, 2, 20)

    prune(tmp_path, [kept])

    assert not (tmp_path / "gen-1").exists() and (tmp_path / "gen-2").exists()


def test_what_is_not_weirs_stays(tmp_path: Path) -> None:
    kept = saved(tmp_path, 1, 10)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "gen-1" / "export.keras").touch()

    prune(tmp_path, [kept])

    assert (tmp_path / "notes.txt").exists() and (tmp_path / "gen-1" / "export.keras").exists()


def test_a_folder_that_is_not_there_has_nothing_to_lose(tmp_path: Path) -> None:
    prune(tmp_path / "nowhere", [])
