"""What all processes of a run do together fails where one of them is gone, and the others must say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lm_eval_proca.errors import DistributedError


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
