"""What becomes of the scores of a task: one table of all processes, kept if asked, then the fits and their record."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask

import lm_eval_proca
from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import ProcaError, TaskError
from lm_eval_proca.harness.gather import compute_once, gather, is_first_process
from lm_eval_proca.harness.plan import Plan
from lm_eval_proca.harness.shards import merge, score_table, scored_documents
from lm_eval_proca.scores.fitting import Fit, fit_all, in_words, label_biases
from lm_eval_proca.scores.identity import score_table_name
from lm_eval_proca.scores.score_table import ScoreTable

logger = logging.getLogger("lm_eval.proca")  # below lm-eval's own logger, the only one that its command shows


def check_scores_dir(task: str, folder: str | None) -> None:
    """Tell a folder that cannot be one before scores are paid for; only the process that will write makes it."""

    def make() -> None:
        try:
            Path(str(folder)).expanduser().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TaskError(
                f"{task}: proca.scores_dir={folder} cannot be a folder for score tables ({error.strerror}); name "
                f"another one."
            ) from error

    if folder is not None:
        compute_once(make)


def fit_scores(
    task: ConfigurableTask,
    plan: Plan,
    calibrators: Mapping[str, Calibrator],
    *,
    filters: Mapping[str, Any],
    scores_dir: str | None,
) -> tuple[dict[str, Fit], dict[str, str]]:
    """The fits by name and, for those that are not possible, why; both are also in the task's metadata from now on.

    Scores that cannot be calibrated cost the calibrated rows of this task, never the raw row or another task.
    """
    name = task.config.task
    # Beyond the labels come the requests of acc_mutual_info, which score every label without a prompt.
    requests = [one for one in task.instances if one.idx < len(plan.record["labels"])]
    scored = merge(gather(scored_documents(requests, plan.documents)), plan.documents.values(), task=name)
    cut = [one.truncated for one in scored if one.truncated is not None]
    record = {**plan.record, "truncated_prompts": sum(cut) if cut else None}
    about_task = {"task": name, "task_version": task.VERSION, **plan.origin, "filters": dict(filters)}
    others = {name: importlib.metadata.version(name) for name in ("lm-eval", "transformers", "torch", "scikit-learn")}
    versions = {"lm-eval-proca": lm_eval_proca.__version__, **others}
    table = score_table(scored, {**record, **about_task, "versions": versions})
    if scores_dir is not None:
        _keep(table, Path(scores_dir).expanduser())

    # Made once and handed to all processes: a tie within rounding is decided the same way everywhere.
    fits, failures = compute_once(lambda: fit_all(table, calibrators))
    if is_first_process():
        for sentence in in_words(failures):
            logger.warning("%s: %s", name, sentence)
        for one, fit in fits.items():
            for warning in fit.calibrator.fit_report().get("warnings", ()):
                logger.warning("%s, %s: %s", name, one, warning)
    record["fits"] = {one: fit.calibrator.fit_report() for one, fit in fits.items()}
    record["not_calibrated"] = failures
    record["bias"] = label_biases(table, fits)
    task.config.metadata["proca"] = record  # lm-eval writes the metadata into its results file
    return fits, failures


def _keep(table: ScoreTable, folder: Path) -> None:
    """Write the score table; a full disk must not cost the results of all tasks."""
    task = table.metadata["task"]
    try:
        path = compute_once(lambda: table.save(folder / score_table_name(table.metadata)))
    except (OSError, ProcaError) as error:  # the latter where another process has failed
        logger.error("%s: the score table cannot be written to %s (%s)", task, folder, error)
    else:
        if is_first_process():
            size = path.stat().st_size / 2**20
            logger.info("%s: score table written to %s (%.1f MiB)", task, path, size)
