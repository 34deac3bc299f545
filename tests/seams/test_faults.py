"""Sweep and calibrate under faults: kill -9, a full disk, a disk that turns read-only, a second run at the same time.

The commands are real and run as processes of their own. Whatever happens to them: what is finished stays as it is,
nothing half-written counts as finished, no traceback is shown, and the same command then ends with the numbers of a
run that nothing disturbed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.runs.output_folder import result_files
from lm_eval_proca.runs.score_files import find_score_tables
from results.output_folders import write_output
from tests.cli.test_output_folders import GROUPS, answers, matrix
from tests.conftest import ROOT
from tests.launch import SECONDS, Node
from tests.sweep import test_disk
from tests.sweep.test_disk import Mount, finished
from tests.sweep.test_nodes import scores
from tests.sweep.test_sweep import cells_of
from tests.sweep.test_workers import pids_that_run

pytestmark = pytest.mark.campaign

PROGRAM = [sys.executable, "-m", "lm_eval_proca.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
CELLS = 6
PAGE = 4096
"""A tmpfs gives its room away in these."""

disk = test_disk.disk


class Command(Node):
    """A command of ours that runs: it can be stopped at a moment, killed there, or let go on."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.log, self.errors, self.name = log, log.with_suffix(".errors"), arguments[0]
        with self.log.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen([*PROGRAM, *arguments], env=ENVIRONMENT, stdout=output, stderr=errors)

    def stop_when(self, happened: Callable[[], bool]) -> None:
        """Freeze it at a moment at which this is true, and stays true because nothing moves."""
        end = time.monotonic() + SECONDS
        while True:
            if happened():
                self.process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if happened() and self.process.poll() is None:
                    return
                self.go_on()
            assert self.process.poll() is None, f"ended too early: {self.printed()}"
            assert time.monotonic() < end, f"nothing happened: {self.printed()}"
            time.sleep(0.001)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def printed(self) -> str:
        return self.log.read_text() + self.errors.read_text()

    def sentence(self) -> str:
        """The one sentence that a failed command ends with."""
        assert self.end() == 1, self.printed()
        lines = self.errors.read_text().splitlines()
        [sentence] = [line for line in lines if line.startswith(f"lm-eval-proca {self.name}: ")]
        assert lines[-1] == sentence
        return sentence


Start = Callable[[list[str]], Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands; none outlives the test, and none may have shown a traceback."""
    started: list[Command] = []

    def start(arguments: list[str]) -> Command:
        started.append(Command(arguments, tmp_path / f"command{len(started)}.log"))
        return started[-1]

    yield start
    for command in started:
        command.kill()
    for command in started:
        assert "Traceback" not in command.printed()


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """The disk takes no more writes, as after an error of the device.

    Files that are open for writing forbid a plain remount, so a read-only view of the disk is laid over it.
    """
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def pages(files: Iterable[Path]) -> int:
    return sum(-(-file.stat().st_size // PAGE) for file in files if file.is_file())


def assert_kept(before: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """Every file of the finished cells is still there byte by byte; those that are there now."""
    now = finished(folder)
    assert before.items() <= now.items(), "a finished cell was lost or written again"
    return now


# ------------------------------------------------------------------ sweep


@pytest.fixture(scope="module")
def sweep(tiny_gpt2: Path, data_dir: Path) -> list[str]:
    """Six cells, whose demonstrations and estimate sets differ; without the folder."""
    return [
        *("sweep", "--model", "hf", "--model_args", f"pretrained={tiny_gpt2}", "--device", "cpu", "--batch_size", "1"),
        *("--tasks", "proca_sst2", "--num_fewshot", "0", "1", "--seeds", "0", "1", "2", "--limit", "20"),
        *("--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=40", "--output_path"),
    ]


@pytest.fixture(scope="module")
def cells(sweep: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The result of every cell of a sweep that nothing disturbed, in the order of the run."""
    folder = tmp_path_factory.mktemp("undisturbed_sweep")
    subprocess.run([*PROGRAM, *sweep, str(folder)], env=ENVIRONMENT, check=True, capture_output=True)
    assert len(cells_of(folder)) == CELLS
    return dict(sorted(cells_of(folder).items()))


def assert_right(folder: Path, cells: dict[str, Path]) -> None:
    """Every cell that counts as finished has the numbers of the undisturbed run; readers see no other files."""
    found = cells_of(folder)
    assert {path.name for path in folder.glob("*/[!.]*")} == set(found), "no other folder has the name of a cell"
    for name, file in found.items():
        result, expected = (json.loads(one.read_text())["results"] for one in (file, cells[name]))
        assert result["proca_sst2"] == pytest.approx(expected["proca_sst2"])
        table, undisturbed = scores(file), scores(cells[name])
        assert table.record == undisturbed.record
        np.testing.assert_array_equal(table.index, undisturbed.index)
        np.testing.assert_allclose(table.scores, undisturbed.scores, atol=1e-5)
        logs = [next(one.parent.glob("samples_*.jsonl")) for one in (file, cells[name])]
        assert answers(logs[0]) == answers(logs[1])
    if found:
        assert sorted(result_files([str(folder)])) == sorted(found.values())
        tables = [next(file.parent.glob("scores/*.parquet")) for file in found.values()]
        assert sorted(find_score_tables([str(folder)])) == sorted(tables)


def hidden(folder: Path, inside: str = "") -> list[str]:
    """What unfinished cells hold. Unlike a Path, this glob bears folders that vanish while it looks."""
    return glob(f"{folder}/*/.unfinished-*/{inside}")


def cells_run(command: Command) -> list[str]:
    """Cells that a sweep says to have finished itself."""
    return re.findall(r"^(proca_sst2-\S+): none ", command.log.read_text(), flags=re.MULTILINE)


def finishes(command: Command, folder: Path, cells: dict[str, Path], kept: dict[str, bytes]) -> None:
    """The same command, undisturbed now, runs the cells that are missing and no other."""
    left = CELLS - sum("/results_" in file for file in kept)
    assert command.end() == 0, command.printed()
    assert command.said(f"{CELLS - left} finished, {left} to do")
    assert len(cells_run(command)) == left
    assert_kept(kept, folder)
    assert_right(folder, cells)
    assert cells_of(folder).keys() == cells.keys()
    assert not hidden(folder)


def test_a_sweep_that_is_killed_twice_in_a_row(
    sweep: list[str], cells: dict[str, Path], start: Start, tmp_path: Path
) -> None:
    """Once when its first cell is finished, once when a cell lacks nothing but its name."""
    runs = tmp_path / "runs"
    first = start([*sweep, str(runs)])
    first.stop_when(lambda: bool(cells_of(runs)))
    first.kill()
    kept = assert_kept({}, runs)
    assert_right(runs, cells)
    second, before = start([*sweep, str(runs)]), len(cells_of(runs))
    second.stop_when(lambda: len(cells_of(runs)) > before and bool(hidden(runs, "scores/*.parquet")))
    second.kill()
    kept = assert_kept(kept, runs)
    assert_right(runs, cells)
    assert hidden(runs, "scores/*.parquet")
    finishes(start([*sweep, str(runs)]), runs, cells, kept)


def test_a_sweep_on_a_disk_that_fills(
    sweep: list[str], cells: dict[str, Path], disk: tuple[Path, Mount], start: Start
) -> None:
    """It fills while a score table is written, and then while lm-eval writes a sample log."""
    place, mount = disk
    kept: dict[str, bytes] = {}
    folders = [file.parent for file in cells.values()]
    fits = ["identity.json"], ["identity.json", "scores/*", "results_*"]
    for number, patterns in enumerate(fits, start=1):
        whole = pages(file for folder in folders[:number] for file in folder.rglob("*"))
        part = pages(file for pattern in patterns for file in folders[number].glob(pattern))
        mount(f"size={(whole + part + 2) * PAGE // 1024}k")  # one more for the claim, one that is too few
        command = start([*sweep, str(place)])
        assert re.search(r"cannot be written to .* \(.*(No space|disk full).*\)\. Finished cells", command.sentence())
        kept = assert_kept(kept, place)
        assert_right(place, cells)
        assert len(cells_of(place)) == number
        assert not hidden(place), "what is not finished takes no room"
    mount("size=50m")
    finishes(start([*sweep, str(place)]), place, cells, kept)


def test_a_sweep_on_a_disk_that_turns_read_only(
    sweep: list[str], cells: dict[str, Path], disk: tuple[Path, Mount], start: Start
) -> None:
    place, mount = disk
    mount("size=50m")
    command = start([*sweep, str(place)])
    command.stop_when(lambda: bool(cells_of(place)) and bool(hidden(place, "scores/*.parquet")))
    kept = finished(place)
    with read_only(place):
        command.go_on()
        assert re.search(r"read-only.*Finished cells are kept", command.sentence(), flags=re.IGNORECASE)
        assert "Read-only file system); choose another" in start([*sweep, str(place)]).sentence()
        assert finished(place) == kept
        assert_right(place, cells)
    finishes(start([*sweep, str(place)]), place, cells, kept)


def test_two_sweeps_at_the_same_time(sweep: list[str], cells: dict[str, Path], start: Start, tmp_path: Path) -> None:
    """Both start together and share the cells; one stands still in the middle of one, and the other leaves it that."""
    runs = tmp_path / "runs"
    both = [start([*sweep, str(runs)]) for _ in range(2)]
    first, second = both
    first.stop_when(lambda: first.process.pid in pids_that_run(runs) and bool(hidden(runs)))
    while "waiting for cells that other workers run" not in second.printed():
        assert second.process.poll() is None, second.printed()
        time.sleep(0.01)
    assert f"process {first.process.pid} on " in second.printed()
    assert len(cells_of(runs)) == CELLS - 1
    assert len(hidden(runs)) <= 1
    assert_right(runs, cells)
    kept = finished(runs)
    first.go_on()
    assert [command.end() for command in both] == [0, 0], first.printed() + second.printed()
    assert_kept(kept, runs)
    assert_right(runs, cells)
    assert sorted(cells_run(first) + cells_run(second)) == sorted(name.rpartition("-")[0] for name in cells)
    assert not hidden(runs)


# ------------------------------------------------------------------ calibrate


@pytest.fixture(scope="module")
def calibrate(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three models, each with two tasks and their group, in a process that can be stopped; without the output."""
    folder = tmp_path_factory.mktemp("output_of_lm_eval")
    for number, model in enumerate(("org/large", "org/medium", "org/small")):
        tasks = {task: matrix(3 * number + k, separation=2.5 - number) for k, task in enumerate(GROUPS["all"])}
        write_output(folder, model, tasks, groups=GROUPS)
    options = ["--calibrators", "bc,proca", "--param", "proca.n_init=20", "--jobs", "1"]
    return ["calibrate", str(folder), *options, "--output"]


@pytest.fixture(scope="module")
def calibrated(calibrate: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes where nothing disturbs it."""
    folder = tmp_path_factory.mktemp("undisturbed_calibration")
    subprocess.run([*PROGRAM, *calibrate, str(folder)], env=ENVIRONMENT, check=True, capture_output=True)
    return folder


def written(output: Path) -> dict[Path, Path]:
    """The files of a calibrated folder, by their place in it."""
    return {file.relative_to(output): file for file in sorted(output.rglob("[!.]*")) if file.is_file()}


def assert_whole(output: Path, calibrated: Path) -> None:
    """Every file has the numbers of the undisturbed run, and a results file has its sample logs."""
    found, expected = written(output), written(calibrated)
    for name, file in found.items():
        if file.suffix == ".jsonl":
            assert answers(file) == answers(expected[name])
            continue
        result, undisturbed = (json.loads(one.read_text())["results"] for one in (file, expected[name]))
        assert result.keys() == undisturbed.keys()
        for task, metrics in result.items():
            assert metrics == pytest.approx(undisturbed[task])
            assert task in GROUPS or any(file.parent.glob(f"samples_{task}_*.jsonl"))


def results(output: Path) -> list[Path]:
    return sorted(output.glob("*/results_*.json"))


def parts(output: Path) -> list[str]:
    """Files that are being written, or were when their writer died."""
    return glob(f"{output}/*/.samples_*.tmp")


def writes_everything(command: Command, output: Path, calibrated: Path) -> None:
    assert command.end() == 0, command.printed()
    assert_whole(output, calibrated)
    assert written(output).keys() == written(calibrated).keys()


def test_a_calibration_that_is_killed_twice(
    calibrate: list[str], calibrated: Path, start: Start, tmp_path: Path
) -> None:
    output = tmp_path / "calibrated"
    for happened in (parts, results):
        command = start([*calibrate, str(output)])
        command.stop_when(lambda: bool(happened(output)))  # noqa: B023
        command.kill()
        assert_whole(output, calibrated)
    assert 0 < len(results(output)) < 3
    assert parts(output)
    writes_everything(start([*calibrate, str(output)]), output, calibrated)


def test_a_calibration_on_two_processes_that_is_killed(
    calibrate: list[str], calibrated: Path, start: Start, tmp_path: Path
) -> None:
    """More restarts, so that it needs the second process; what is written then has other numbers, but is whole."""
    output, parallel = tmp_path / "calibrated", ["--jobs", "2", "--param", "proca.n_init=200"]
    command = start([*calibrate, str(output), *parallel])
    command.stop_when(lambda: bool(results(output)))
    workers = command.workers()
    command.process.kill()
    command.process.wait()
    end = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < end, "processes outlive the command"
        time.sleep(0.01)
    for file in written(output).values():
        assert file.suffix != ".json" or len(json.loads(file.read_text())["results"]) == 3
    writes_everything(start([*calibrate, str(output)]), output, calibrated)


def test_a_calibration_on_a_disk_that_fills(
    calibrate: list[str], calibrated: Path, disk: tuple[Path, Mount], start: Start
) -> None:
    """It fills while a sample log is written, at once when tried again, and then while the last result is."""
    place, mount = disk
    one = pages(results(calibrated)[0].parent.iterdir())
    everything = pages(calibrated.rglob("*"))
    for room, whole in ((one + 10, 1), (one + 10, 1), (everything - 2, 2)):
        mount(f"size={room * PAGE // 1024}k")
        sentence = start([*calibrate, str(place)]).sentence()
        assert f"Cannot write {place}" in sentence
        assert "No space left on device" in sentence
        assert len(results(place)) == whole
        assert_whole(place, calibrated)
        assert not parts(place), "what is not whole takes no room"
    mount("size=50m")
    writes_everything(start([*calibrate, str(place)]), place, calibrated)


def test_a_calibration_on_a_disk_that_turns_read_only(
    calibrate: list[str], calibrated: Path, disk: tuple[Path, Mount], start: Start
) -> None:
    place, mount = disk
    mount("size=50m")
    command = start([*calibrate, str(place)])
    command.stop_when(lambda: bool(results(place)) and bool(parts(place)))
    kept = {name: file.read_bytes() for name, file in written(place).items()}
    with read_only(place):
        command.go_on()
        assert "Read-only file system" in command.sentence()
        again = start([*calibrate, str(place)])
        assert "Read-only file system" in again.sentence()
        assert again.log.read_text() == "", "no numbers are shown that are not written"
        assert {name: file.read_bytes() for name, file in written(place).items()} == kept
        assert_whole(place, calibrated)
    writes_everything(start([*calibrate, str(place)]), place, calibrated)


def test_two_calibrations_at_the_same_time(
    calibrate: list[str], calibrated: Path, start: Start, tmp_path: Path
) -> None:
    """The first stands still while it writes, until the second has written everything, and then goes on."""
    output = tmp_path / "calibrated"
    first = start([*calibrate, str(output)])
    first.stop_when(lambda: bool(parts(output)))
    writes_everything(start([*calibrate, str(output)]), output, calibrated)
    first.go_on()
    writes_everything(first, output, calibrated)
    assert not parts(output)
