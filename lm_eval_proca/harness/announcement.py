"""What a run with `proca.calibrate=true` says once about all its tasks, however many there are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from lm_eval_proca.harness.gather import is_first_process

logger = logging.getLogger("lm_eval.proca")


@dataclass
class Announcement:
    """Collects what becomes of each task; said as soon as the requests of the last awaited one are known."""

    awaited: set[str] = field(default_factory=set)
    calibrated: dict[str, list[str]] = field(default_factory=dict)
    """By what calibrators are fitted on."""
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    """By what stands in the way."""
    many_prompts: list[str] = field(default_factory=list)
    """Tasks that draw new demonstrations for every document."""
    further_requests: int = 0

    def calibrates(self, task: str, how: str, *, further_requests: int, many_prompts: bool) -> None:
        if task in self.awaited:  # not evaluated again
            self.calibrated.setdefault(how, []).append(task)
            self.many_prompts += [task] * many_prompts
            self.further_requests += further_requests
            self._arrived(task)

    def leaves_unchanged(self, task: str, obstacle: str) -> None:
        if task in self.awaited:
            self.unchanged.setdefault(obstacle, []).append(task)
            self._arrived(task)

    def _arrived(self, task: str) -> None:
        self.awaited.remove(task)
        if not self.awaited and is_first_process():
            for line in self._lines():
                logger.info("proca.calibrate: %s", line)

    def _lines(self) -> list[str]:
        lines = [f"calibrated rows for {_counted(tasks)}, {how}" for how, tasks in self.calibrated.items()]
        if self.further_requests:
            lines.append(f"{self.further_requests} requests more than without it")
        if self.unchanged:
            reasons = "; ".join(f"{reason}: {_counted(tasks)}" for reason, tasks in self.unchanged.items())
            count = sum(map(len, self.unchanged.values()))
            lines.append(f"{count} of the tasks cannot be calibrated and run unchanged ({reasons})")
        if self.many_prompts:
            lines.append(
                f"new demonstrations for every document in {_counted(self.many_prompts)}; what is calibrated there is "
                f"the average bias of many prompts"
            )
        return lines


def _counted(tasks: Sequence[str], shown: int = 3) -> str:
    more = ", ..." if len(tasks) > shown else ""
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({', '.join(tasks[:shown])}{more})"
