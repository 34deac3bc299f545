"""ProCa on real scores against a plain loop over scikit-learn's GaussianMixture."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from lm_eval_proca import PrototypicalCalibrator, ScoreTable
from tests.conftest import ROOT

pytestmark = [pytest.mark.real, pytest.mark.slow]

TASKS = ("proca_sst2", "proca_agnews", "proca_trec", "proca_dbpedia")


@pytest.fixture(scope="module")
def tables(smollm2: Path, real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ScoreTable]:
    """Score tables of one SmolLM2 run over the four tasks, 1 shot; the estimate rows are compared, too."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    from lm_eval_proca.models.shared_prefix import SharedPrefixLM

    folder = tmp_path_factory.mktemp("scores")
    settings = {"data_dir": str(real_data), "estimate_size": 100, "scores_dir": str(folder)}
    manager = TaskManager(include_path=ROOT / "task_configs", include_defaults=False, metadata={"proca": settings})
    lm = SharedPrefixLM(pretrained=str(smollm2), device="cpu", dtype="float32", batch_size="auto")
    lm_eval.simple_evaluate(
        model=lm, tasks=list(TASKS), task_manager=manager, num_fewshot=1, limit=5, bootstrap_iters=0
    )
    return {task: ScoreTable.load(next(folder.glob(f"{task}-*.parquet"))) for task in TASKS}


def plain_loop(estimate: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Section 3 of the paper in a dozen lines: 100 fits, Hungarian on the means, best sum, density without weights."""
    x, best, chosen = log_softmax(estimate, axis=1), -np.inf, None
    for seed in range(100):
        mixture = GaussianMixture(x.shape[1], random_state=seed).fit(x)
        clusters, labels = linear_sum_assignment(-mixture.means_)
        total = mixture.means_[clusters, labels].sum()
        if total > best:
            best, chosen = total, (mixture, labels)
    mixture, labels = chosen
    density = mixture._estimate_log_prob(log_softmax(scores, axis=1))
    return labels[density.argmax(axis=1)]


@pytest.mark.parametrize("task", TASKS)
def test_predictions_agree_with_the_plain_loop(tables: dict[str, ScoreTable], task: str):
    estimate = tables[task].scores_of("estimate")
    scores = np.vstack([tables[task].scores_of("eval"), estimate])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = plain_loop(estimate, scores)
    predicted = PrototypicalCalibrator(random_state=0).fit(estimate).predict(scores)
    assert np.mean(predicted == expected) >= 0.995
