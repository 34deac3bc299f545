"""Many processes: what they exchange, which of them writes, and how they end when one of them is gone.

lm-eval applies filters on each rank's shard, before results are gathered. A calibrator must see the estimate rows of
all ranks, so `gather` exchanges them. `compute_once` sends the value, or the error, of the first process to all.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from lm_eval_proca.errors import DistributedError, ProcaError

T = TypeVar("T")

GRACE_SECONDS = 120.0
"""How long a process that failed waits for the others to come to the end of the cell."""

_FOREVER = timedelta(weeks=52)  # as lm-eval's HFLM: a process may score for days before it meets the others


@contextmanager
def collective() -> Iterator[None]:
    """Around an operation of torch.distributed in which processes wait for each other."""
    try:
        yield
    except RuntimeError as error:
        raise DistributedError(
            f"This process stops because another process of this run has ended ({error}); look for what that one says, "
            f"and start the same command again."
        ) from error


def _process_group() -> Any | None:
    """`torch.distributed` if more than one process takes part, else None; torch is never imported for this."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed if torch.distributed.get_world_size() > 1 else None


def is_first_process() -> bool:
    """Whether this process writes files. lm-eval's own rank is 0 everywhere under tensor parallelism."""
    group = _process_group()
    return group is None or group.get_rank() == 0


def gather(value: T) -> list[T]:
    """The values of all processes in rank order, on every process."""
    group = _process_group()
    if group is None:
        return [value]
    values: list[Any] = [None] * group.get_world_size()
    with collective():
        group.all_gather_object(values, value)
    return values


def compute_once(compute: Callable[[], T]) -> T:
    """Run `compute` on the first process and give its value, or its error, to all."""
    group = _process_group()
    if group is None:
        return compute()
    outcome: list[Any] = [None, None]
    if group.get_rank() == 0:
        try:
            outcome[0] = compute()
        except ProcaError as error:
            outcome[1] = error
        except Exception as error:  # the other ranks wait in the broadcast below and must be told
            outcome[1] = ProcaError(f"The first process failed with {type(error).__name__}: {error}")
    with collective():
        group.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def join() -> bool:
    """Open the process group of `torchrun` or `accelerate launch`, if one of them started this process.

    HFLM would open it while it loads the model; but which cells are to do is decided before.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    from accelerate import PartialState

    PartialState(timeout=_FOREVER)
    return True


class Ranks:
    """The processes that run the same cells: they agree on every outcome, and none waits for one that failed."""

    def __init__(self) -> None:
        self._group = None
        if join():
            import torch.distributed

            # A group of its own: a process that fails in the middle of a cell must not answer to a collective of
            # lm-eval's in which the others wait for it.
            self._group = torch.distributed.new_group(backend="gloo", timeout=_FOREVER)

    def agree(self, problem: T | None) -> T | None:
        """The first problem that any process has, on all of them; None if all went well.

        A mistake in the task or its data meets every process alike, and all arrive here. A process that failed alone
        has left the others in a collective: it ends itself, so that the launcher ends them.
        """
        if self._group is None:
            return problem
        import torch.distributed

        watchdog = threading.Timer(GRACE_SECONDS, _leave, (problem,))
        watchdog.daemon = True
        if problem is not None:
            watchdog.start()
        problems: list[T | None] = [None] * torch.distributed.get_world_size()
        with collective():
            torch.distributed.all_gather_object(problems, problem, group=self._group)
        watchdog.cancel()
        return next((found for found in problems if found is not None), None)


def _leave(problem: object) -> None:
    print(
        f"lm-eval-proca: this process failed alone and cannot go on with the others ({problem}); finished cells are "
        f"safe, start the same command again.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
