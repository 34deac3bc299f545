"""Agreement between processes: what every rank must know before anything is fitted.

lm-eval applies filters on each rank's shard, before results are gathered. A calibrator must see the estimate rows
of all ranks, so they are exchanged here, in collectives that no rank can skip: a rank that has bad news sends it in
the same collective as its rows, and all ranks stop with the same sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from lm_eval_proca.distributed import collective
from lm_eval_proca.errors import ProcaError

T = TypeVar("T")


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
        except Exception as error:  # the other ranks wait in the broadcast below: they must hear of it
            outcome[1] = ProcaError(f"The first process failed with {type(error).__name__}: {error}")
    with collective():
        group.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
