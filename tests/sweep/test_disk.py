"""A sweep on a disk that is full, read-only or no folder: one sentence, and the same command goes on later."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.sweep.cell import Model, cell_folder, is_finished
from tests.sweep.test_runner import CELLS, Recorder, run

Mount = Callable[..., None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Mount]]:
    """A file system of its own, and a function that mounts it again with other options."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> subprocess.CompletedProcess:
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)

    if mount("size=100k").returncode != 0:
        pytest.skip("only root may mount a file system")
    try:
        yield place, lambda options: mount(f"remount,{options}").check_returncode()
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def command(tiny_gpt2: Path, data_dir: Path) -> list[str]:
    return [
        *("sweep", "--model", "hf", "--model_args", f"pretrained={tiny_gpt2}", "--device", "cpu", "--limit", "10"),
        *("--tasks", "proca_sst2", "--num_fewshot", "0", "--seeds", "0", "1", "2", "--batch_size", "16"),
        *("--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=20", "--output_path"),
    ]


def finished(folder: Path) -> dict[str, bytes]:
    """Every file of the cells that have their final name."""
    return {str(file): file.read_bytes() for file in folder.glob("*/[!.]*/**/*") if file.is_file()}


def test_a_full_disk_ends_in_a_sentence_and_the_same_command_goes_on(
    disk: tuple[Path, Mount], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place, mount = disk
    assert main([*command, str(place)]) == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err + printed.out
    last = printed.err.splitlines()[-1]
    assert last.startswith("lm-eval-proca sweep: ")
    assert "Finished cells are kept" in last
    kept = finished(place)
    assert 0 < len(list(place.glob("*/[!.]*/results_*.json"))) < 3, "the disk must hold some of the cells"
    assert not list(place.glob("*/.unfinished-*"))

    mount("size=50m")
    assert main([*command, str(place)]) == 0
    assert len(list(place.glob("*/[!.]*/results_*.json"))) == 3
    assert kept.items() <= finished(place).items()


def test_a_read_only_folder_ends_in_a_sentence_before_the_model_is_loaded(disk: tuple[Path, Mount]) -> None:
    place, mount = disk
    model = Model("dummy", {})
    run(Recorder(), model, place, CELLS[:1])
    mount("ro")
    evaluate = Recorder()
    with pytest.raises(ResultsError, match=r"Cannot write to .* \(Read-only file system\); choose another"):
        run(evaluate, model, place)
    assert evaluate.seen == []
    assert is_finished(cell_folder(place, model, CELLS[0]))
    mount("rw")
    run(evaluate, model, place)
    assert evaluate.seen == CELLS[1:]


def test_a_folder_below_a_file_ends_in_a_sentence(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*command, str(tmp_path / "file" / "runs")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lm-eval-proca sweep: Cannot write to ")
    assert last.endswith("(Not a directory); choose another --output_path.")


@pytest.mark.parametrize("number", [28, 30, 122], ids=["full", "read-only", "quota"])
def test_no_further_cell_is_scored_once_a_file_cannot_be_written(tmp_path: Path, number: int) -> None:
    model = Model("dummy", {})
    evaluate = Recorder({CELLS[1]: OSError(number, "of this number")})
    with pytest.raises(ResultsError, match=r"of this number.* Finished cells are kept"):
        run(evaluate, model, tmp_path)
    assert evaluate.seen == CELLS[:2]
    run(evaluate := Recorder(), model, tmp_path)
    assert evaluate.seen == CELLS[1:]


def test_a_log_that_cannot_be_written_ends_in_a_sentence(tmp_path: Path) -> None:
    model = Model("dummy", {})
    folder = cell_folder(tmp_path, model, CELLS[1])
    folder.with_name(f"{folder.name}.failed.log").mkdir(parents=True)
    with pytest.raises(ResultsError, match=r"Cannot write to .* \(Is a directory\). Finished cells are kept"):
        run(Recorder({CELLS[1]: RuntimeError("whatever")}), model, tmp_path)
    assert is_finished(cell_folder(tmp_path, model, CELLS[0]))
