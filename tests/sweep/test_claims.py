"""Who has a cell: claims that end with their worker, on this machine and on others."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lm_eval_proca.sweep import claims
from lm_eval_proca.sweep.cell import Cell, Model, cell_folder, key_of
from lm_eval_proca.sweep.claims import Claim, Worker, claims_in, holders, kept, release, sweep_leftovers, take
from tests.sweep.test_runner import CELLS, Recorder, run

HOLD = """
import sys, time
from pathlib import Path
from lm_eval_proca.sweep.claims import take
claim = take(Path(sys.argv[1]), sys.argv[2], "a cell")
claim.folder(Path(sys.argv[1]) / "name-key").mkdir()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def model() -> Model:
    return Model("dummy", {})


@contextmanager
def worker_process(home: Path, key: str) -> Iterator[subprocess.Popen]:
    """Another process that has a claim and a folder."""
    home.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(home), key], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def claim_of_another_host(home: Path, key: str, age: float) -> Claim:
    """As a worker elsewhere would have written it, with a heartbeat so many seconds ago."""
    home.mkdir(parents=True, exist_ok=True)
    here = Worker.this("a cell")
    worker = dataclasses.replace(here, host="elsewhere", machine="elsewhere", pid=1, started="1")
    claim = Claim(home / f".claim-{key}-0", worker)
    claim.path.write_text(json.dumps(dataclasses.asdict(worker)))
    os.utime(claim.path, (time.time() - age,) * 2)
    claim.folder(home / "name-key").mkdir()
    return claim


def hidden(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob(".*"))


def test_a_claim_ends_with_its_process(tmp_path: Path):
    with worker_process(tmp_path, "key") as process:
        before = hidden(tmp_path)
        assert len(before) == 2, "a claim and a folder"
        assert take(tmp_path, "key", "a cell") is None
        sweep_leftovers(tmp_path)
        assert hidden(tmp_path) == before
        assert f"a cell: process {process.pid} on " in str(holders(tmp_path)["key"])
        os.kill(process.pid, signal.SIGSTOP)
        assert take(tmp_path, "key", "a cell") is None, "who stands still is not dead"
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a process that nobody has asked for its end
        assert holders(tmp_path) == {}
        assert take(tmp_path, "key", "a cell") is not None
    assert hidden(tmp_path) == [".claim-key-1"], "what the dead worker left is gone"


def test_a_process_number_that_was_given_again_is_another_process(tmp_path: Path):
    claim = take(tmp_path, "key", "a cell")
    assert claim is not None
    other = dataclasses.replace(claim.worker, started="1")  # our number, of a process that started at another time
    claim.path.write_text(json.dumps(dataclasses.asdict(other)))
    assert take(tmp_path, "key", "a cell") is not None


def test_a_stale_claim_of_another_host_is_taken_over_and_a_fresh_one_is_not(tmp_path: Path):
    for age, expired in ((0.0, False), (claims.EXPIRES_SECONDS - 60, False), (claims.EXPIRES_SECONDS + 60, True)):
        home = tmp_path / str(age)
        claim_of_another_host(home, "key", age)
        before = hidden(home)
        sweep_leftovers(home)
        assert (hidden(home) == []) == expired
        assert expired or hidden(home) == before
        assert (take(home, "key", "a cell") is not None) == expired


@pytest.mark.parametrize("skew", [-1e6, 1e6])
def test_the_clock_of_this_host_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float):
    claim_of_another_host(tmp_path / "fresh", "key", age=0.0)
    claim_of_another_host(tmp_path / "stale", "key", age=claims.EXPIRES_SECONDS + 60)
    plain = time.time
    monkeypatch.setattr(time, "time", lambda: plain() + skew)
    assert list(holders(tmp_path / "fresh")) == ["key"]
    assert holders(tmp_path / "stale") == {}


def test_a_claim_that_is_not_yet_written_belongs_to_somebody(tmp_path: Path):
    (tmp_path / ".claim-key-0").touch()
    assert take(tmp_path, "key", "a cell") is None
    os.utime(tmp_path / ".claim-key-0", (0, 0))
    assert take(tmp_path, "key", "a cell") is not None


def test_one_of_many_takes_a_dead_claim_over(tmp_path: Path):
    """Threads are as good as processes here: what is exclusive is the file."""
    for attempt in range(20):
        home = tmp_path / str(attempt)
        claim_of_another_host(home, "key", age=claims.EXPIRES_SECONDS + 60)
        begin, taken = threading.Barrier(8), []

        def try_it(home: Path = home, begin: threading.Barrier = begin, taken: list = taken) -> None:
            begin.wait()
            taken.append(take(home, "key", "a cell"))

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (claim,) = filter(None, taken)
        assert claim.is_held()
        assert hidden(home) == [claim.path.name]


@pytest.mark.parametrize(("seen", "there"), [([], 1), ([4], 0)])
def test_who_looked_too_early_leaves_the_cell_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[int], there: int
):
    """It saw no claim: then one came, died and was taken over. Or a claim that was given back and made again."""
    plain = claims.claims_in
    looks = iter([[Claim(tmp_path / f".claim-key-{turn}", None) for turn in seen]])
    (tmp_path / f".claim-key-{there}").touch()
    monkeypatch.setattr(claims, "claims_in", lambda home, key="*": next(looks, plain(home, key)))
    assert take(tmp_path, "key", "a cell") is None
    assert hidden(tmp_path) == [f".claim-key-{there}"]


def test_a_kept_claim_is_renewed_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.01)
    claim = take(tmp_path, "key", "a cell")
    assert claim is not None
    os.utime(claim.path, (0, 0))
    with kept(claim):
        end = time.monotonic() + 60
        while claim.path.stat().st_mtime == 0:
            assert time.monotonic() < end, "no heartbeat"
            time.sleep(0.01)
    assert hidden(tmp_path) == []


def test_a_claim_that_was_taken_over_is_not_given_back(tmp_path: Path):
    mine = take(tmp_path, "key", "a cell")
    assert mine is not None
    theirs = claim_of_another_host(tmp_path, "key", age=0.0)  # whose turn has our number, as after a third worker
    assert theirs.path == mine.path
    release(mine)
    assert not mine.is_held()
    assert theirs.is_held()


# ------------------------------------------------------------------ workers that share cells


class Disturbed(Recorder):
    """Evaluations in the middle of one of which something else happens."""

    def __init__(self, happens: Callable[[Path], object], cell: Cell = CELLS[0]) -> None:
        super().__init__()
        self.happens, self.cell = happens, cell

    def __call__(self, cell: Cell, model: Model, folder: Path) -> dict[str, float]:
        if cell == self.cell:
            self.happens(folder)
            folder.mkdir(exist_ok=True)  # as lm-eval does, wherever it writes
        return super().__call__(cell, model, folder)


def test_a_worker_waits_for_the_cells_of_others_and_takes_over_those_of_the_dead(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(claims, "POLL_SECONDS", 0.01)
    evaluate, home = Recorder(), tmp_path / model.name
    with worker_process(home, key_of(cell_folder(tmp_path, model, CELLS[0]))) as process:
        worker = threading.Thread(target=run, args=(evaluate, model, tmp_path))
        worker.start()
        while len(list(home.glob("[!.]*/results_now.json"))) < 2:
            time.sleep(0.01)
        time.sleep(0.1)
        assert worker.is_alive()
        assert evaluate.seen == CELLS[1:], "what is free comes first"
        process.kill()
        worker.join()
    assert evaluate.seen == [*CELLS[1:], CELLS[0]]
    waiting = [line for line in capsys.readouterr().err.splitlines() if "waiting for" in line]
    assert len(waiting) == 1, "it says once what it waits for"
    assert f"a cell: process {process.pid} on " in waiting[0]
    assert hidden(home) == []


def test_cells_that_others_finish_meanwhile_count_as_finished(model: Model, tmp_path: Path, capsys):
    other = Recorder()
    evaluate = Disturbed(lambda folder: run(other, model, tmp_path, CELLS[1:]))
    outcomes = run(evaluate, model, tmp_path)
    assert (evaluate.seen, other.seen) == (CELLS[:1], CELLS[1:])
    assert [outcome.failure for outcome in outcomes] == [None] * 3
    assert capsys.readouterr().out.count("finished by another worker") == 2


@pytest.mark.parametrize("error", [None, OSError(28, "its files are not complete")])
def test_a_stalled_worker_leaves_the_cell_to_the_one_that_took_it_over(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: OSError | None
):
    """The second worker sees a claim of another host, without a heartbeat; the first may miss its files later."""
    second = Recorder()
    home = tmp_path / model.name

    def is_taken_over(folder: Path) -> None:
        (claim,) = claims_in(home)
        away = dataclasses.replace(claim.worker, machine="elsewhere")
        claim.path.write_text(json.dumps(dataclasses.asdict(away)))
        os.utime(claim.path, (0, 0))
        run(second, model, tmp_path)
        assert not folder.exists()

    first = Disturbed(is_taken_over)
    first.fails = {CELLS[0]: error} if error else {}
    outcomes = run(first, model, tmp_path)
    assert (first.seen, second.seen) == (CELLS[:1], CELLS)
    assert [(outcome.failure, outcome.log) for outcome in outcomes] == [(None, None)] * 3
    assert hidden(home) == []
    assert not list(home.glob("*.failed.log"))
    assert "FAILED" not in capsys.readouterr().out


def test_the_first_result_of_a_cell_stays(model: Model, tmp_path: Path, capsys):
    """Two workers come to the end of one cell: neither fails, and nothing is mixed."""
    finished = cell_folder(tmp_path, model, CELLS[0])

    def is_finished_elsewhere(folder: Path) -> None:
        Recorder()(CELLS[0], model, folder)
        (folder / "results_now.json").rename(folder / "results_before.json")
        shutil.copytree(folder, finished)
        shutil.rmtree(folder)

    outcomes = run(Disturbed(is_finished_elsewhere), model, tmp_path)
    assert [outcome.failure for outcome in outcomes] == [None] * 3
    assert [file.name for file in finished.glob("results_*")] == ["results_before.json"]
    assert hidden(finished.parent) == []
    assert "FAILED" not in capsys.readouterr().out


def test_a_cell_that_fails_here_may_succeed_elsewhere(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A host may be at fault: the first worker fails on a cell once, and waits for the second, which tries it too."""
    monkeypatch.setattr(claims, "POLL_SECONDS", 0.01)
    second = Disturbed(lambda folder: time.sleep(0.3))
    worker = threading.Thread(target=run, args=(second, Model("dummy", {}), tmp_path, CELLS[:1]))

    def second_begins(folder: Path) -> None:
        worker.start()
        while len(holders(tmp_path / model.name)) < 2:
            time.sleep(0.001)

    first = Disturbed(second_begins, CELLS[1])
    first.fails = {CELLS[0]: MemoryError("a small GPU")}
    outcomes = run(first, model, tmp_path)
    worker.join()
    assert (first.seen, second.seen) == (CELLS, CELLS[:1])
    assert [outcome.failure for outcome in outcomes] == [None] * 3
    assert not list(tmp_path.glob("*/*.failed.log"))
