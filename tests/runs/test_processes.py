"""Calls in other processes: their values in order, their errors, and their end."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.runs import processes as module
from lm_eval_proca.runs.processes import cores, processes

WORK = """
import os, sys, time
from lm_eval_proca.runs import processes as module
from tests.runs.test_processes import note_and_sleep

module.ALONE_SECONDS = 0.0
try:
    with module.processes(2) as submit:
        [later() for later in [submit(note_and_sleep, sys.argv[1], number) for number in range(4)]]
except KeyboardInterrupt:
    sys.exit(130)
"""


def after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def fail(sentence: str) -> None:
    raise ScoreTableError(sentence)


def threads() -> list[int]:
    import sklearn.cluster  # noqa: F401  (which brings OpenMP)

    return [library["num_threads"] for library in threadpool_info()]


def note_and_sleep(folder: str, number: int) -> None:
    Path(folder, f"{number}-{os.getpid()}").touch()
    time.sleep(600)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are started for the first call."""
    monkeypatch.setattr(module, "ALONE_SECONDS", 0.0)


def test_values_come_in_the_order_of_the_calls(at_once: None):
    with processes(2) as submit:
        slow, quick = submit(after, 0.5), submit(after, 0.0)
        numbers = [submit(operator.neg, number) for number in range(10)]
        assert {slow(), quick()} - {os.getpid()}
        assert [later() for later in numbers] == [-number for number in range(10)]
        assert set(submit(threads)()) == {1}


def test_an_error_is_raised_where_its_value_is_asked_for(at_once: None):
    with processes(2) as submit:
        wrong, right = submit(fail, "one clear sentence."), submit(operator.add, 1, 2)
        assert right() == 3
        with pytest.raises(ScoreTableError, match=r"^one clear sentence\.$"):
            wrong()


def test_small_work_and_one_job_stay_in_this_process():
    for jobs in (1, 2):
        with processes(jobs) as submit:
            assert {submit(os.getpid)() for _ in range(10)} == {os.getpid()}
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_work_goes_to_other_processes_once_it_is_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ALONE_SECONDS", 0.1)
    with processes(2) as submit:
        begun = [submit(after, 0.2) for _ in range(4)]
        pids = [later() for later in begun]
    assert pids[0] == os.getpid()
    assert os.getpid() not in pids[1:]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(tmp_path: Path, number: int):
    """Ctrl-C goes to all processes of a terminal; kill -9 to the first alone."""
    with subprocess.Popen(
        [sys.executable, "-c", WORK, str(tmp_path)], start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as first:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        others = [int(file.name.partition("-")[2]) for file in tmp_path.iterdir()]
        assert first.pid not in others
        (os.killpg if number == signal.SIGINT else os.kill)(first.pid, number)
        assert first.wait() == (130 if number == signal.SIGINT else -signal.SIGKILL)
        wait_until(lambda: not any(map(runs, others)))
        assert first.stderr is not None
        assert "Traceback" not in first.stderr.read()
