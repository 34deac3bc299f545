"""Several processes that run the same cells: they agree on every outcome, and none waits for one that failed."""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta
from typing import TypeVar

from lm_eval_proca.distributed import collective

T = TypeVar("T")

GRACE_SECONDS = 120.0
"""How long a process that failed waits for the others to come to the end of the cell."""

_FOREVER = timedelta(weeks=52)  # as lm-eval's HFLM: a process may score for days before it meets the others


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
    """The processes that run the same cells; a single process agrees with itself."""

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
