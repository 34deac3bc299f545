from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def tiny_lm(tiny_gpt2: Path):
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(tiny_gpt2), device="cpu", batch_size=16)


OWN_TASK = """
class: !function lm_eval_proca.CalibratedTask
task: own_sentiment
dataset_path: somebody/reviews
validation_split: validation
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{{{sentence.strip()}}}} All in all it was"
doc_to_target: label
doc_to_choice: {choices}
calibration:
  estimate_split: train
  estimate_size: {estimate_size}
  text_fields: {text_fields}
  data_folder: sst2
{more}
"""


@pytest.fixture
def own_task(tmp_path: Path) -> Callable[..., Path]:
    """Writes a user's own YAML, which is not among the nine tasks, and returns its folder."""

    def write(
        choices: str = '["bad", "good"]',
        estimate_size: Any = 60,
        text_fields: str = "[sentence]",
        more: str = "",
        drop: str = "",
    ) -> Path:
        text = OWN_TASK.format(choices=choices, estimate_size=estimate_size, text_fields=text_fields, more=more)
        if drop:
            text = "\n".join(line for line in text.splitlines() if not line.strip().startswith(drop))
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        (folder / "own_sentiment.yaml").write_text(text)
        return folder

    return write


@pytest.fixture
def evaluate(tiny_lm, data_dir: Path) -> Callable[..., dict]:
    """lm-eval's own `simple_evaluate` on local rows; `settings` are proca.* settings."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    def run(task: str, *, include: Path | None = None, settings: dict | None = None, lm=None, **kwargs) -> dict:
        metadata = {"proca.data_dir": str(data_dir)} | {
            f"proca.{key}": value for key, value in (settings or {}).items()
        }
        manager = TaskManager(include_path=include or ROOT / "task_configs", include_defaults=False, metadata=metadata)
        kwargs.setdefault("bootstrap_iters", 0)
        return lm_eval.simple_evaluate(model=lm or tiny_lm, tasks=[task], task_manager=manager, **kwargs)

    return run
