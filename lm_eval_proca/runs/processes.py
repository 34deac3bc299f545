"""Work on all cores: functions called in other processes, with their values taken in the order of the calls."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

from threadpoolctl import threadpool_limits

Later = Callable[[], Any]
"""Gives the value of a call, or raises its error; waits for it if need be."""

Submit = Callable[..., Later]
"""Takes a function and its arguments."""

ALONE_SECONDS = 1.0
"""So long this process works alone: other processes need about as long to start, and small inputs are done by then."""
MANY_CALLS = 8
"""So many for each process are no small input."""


def cores() -> int:
    """So many may be used by this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def processes(jobs: int) -> Iterator[Submit]:
    """Call functions in so many processes; with one, in this process when a value is asked for.

    None of the others outlives the block, or this process.
    """
    if jobs <= 1:
        yield partial
        return
    calls = _Calls(jobs)
    try:
        yield calls.submit
    finally:
        if calls.pool is not None:
            calls.pool.shutdown(cancel_futures=True)


class _Calls:
    """Calls that wait for this process, until it hands all of them over to others."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.pool: ProcessPoolExecutor | None = None
        self.waiting: dict[Later, Future | None] = {}
        self.spent = 0.0

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> Later:
        call = partial(function, *args, **options)
        self.waiting[call] = None if self.pool is None else self.pool.submit(_on_one_thread, call)
        return partial(self._value_of, call)

    def _value_of(self, call: Later) -> Any:
        if self.pool is None and (self.spent >= ALONE_SECONDS or len(self.waiting) > MANY_CALLS * self.jobs):
            # Not forked: OpenMP does not survive that in a process that has used it.
            self.pool = ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _begin)
            self.waiting = {one: self.pool.submit(_on_one_thread, one) for one in self.waiting}
        future, begin = self.waiting.pop(call), time.monotonic()
        try:
            return call() if future is None else future.result()
        except BrokenProcessPool:
            time.sleep(1.0)  # Ctrl-C may have ended the others first: it is then raised here
            raise
        finally:
            self.spent += time.monotonic() - begin


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all of them; the first process says so
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Processes of a pool would wait for work for ever, if the one that gives it is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _on_one_thread(call: Later) -> Any:
    """Processes are enough for the cores."""
    with threadpool_limits(1):
        return call()
