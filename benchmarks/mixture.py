"""The hundred mixture fits of ProCa: a loop over scikit-learn's GaussianMixture against PrototypicalCalibrator.

python -m benchmarks.mixture
"""

from __future__ import annotations

import argparse
import statistics
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from benchmarks.ratios import Ratio, alternate, median_ratio, save, show
from lm_eval_proca import PrototypicalCalibrator

RESTARTS = 100


def made_scores(rows: int, labels: int, seed: int = 0) -> NDArray[np.float64]:
    """Log-likelihoods as a language model gives them: a bias for some labels, and a little more for the right one."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(labels, size=rows)
    scores = -6 + rng.normal(0, 1.5, labels) + rng.normal(0, 0.7, (rows, labels)) + rng.normal(0, 1, (rows, 1))
    scores[np.arange(rows), gold] += 2.5
    return scores


def scikit_learn_loop(scores: NDArray[np.float64]) -> list[GaussianMixture]:
    features = log_softmax(scores, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return [GaussianMixture(scores.shape[1], random_state=r).fit(features) for r in range(RESTARTS)]


def compare(rows: int, labels: int, goal: float, repeats: int) -> Ratio:
    scores = made_scores(rows, labels)
    fits: dict[str, list[GaussianMixture]] = {}
    ours = PrototypicalCalibrator(n_init=RESTARTS)
    ours.fit(scores)
    seconds = alternate(
        {"loop": lambda: fits.update(loop=scikit_learn_loop(scores)), "ours": lambda: ours.fit(scores)}, repeats
    )
    lower_bounds = np.array([fit.lower_bound_ for fit in fits["loop"]])
    return Ratio(
        f"{RESTARTS} restarts, {rows} rows x {labels} labels: scikit-learn / ours",
        median_ratio(seconds, "loop", "ours"),
        goal,
        details={
            "seconds": [statistics.median(seconds["loop"]), statistics.median(seconds["ours"])],
            "lower bounds differ by": float(np.abs(lower_bounds - ours.lower_bounds_).max()),
        },
    )


def growth(rows: int, labels: int, repeats: int) -> Ratio:
    """Seconds for twice the rows, over seconds for the rows, per EM step: 2 where the cost is linear."""
    small, large = made_scores(rows, labels), made_scores(2 * rows, labels)
    calibrator = PrototypicalCalibrator(n_init=20, max_iter=20, tol=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds = alternate({"rows": lambda: calibrator.fit(small), "twice": lambda: calibrator.fit(large)}, repeats)
    return Ratio(
        f"20 EM steps, {labels} labels: {2 * rows} rows / {rows} rows",
        median_ratio(seconds, "twice", "rows"),
        2.5,
        at_most=True,
        details={"seconds": [statistics.median(seconds["twice"]), statistics.median(seconds["rows"])]},
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args(argv).repeats
    rows = []
    for measure in (
        lambda: compare(3000, 14, 10, repeats),
        lambda: compare(500, 2, 2.5, repeats),
        lambda: growth(3000, 14, repeats),
    ):
        rows.append(measure())
        show(rows[-1])
    save("mixture", rows, {"repeats": repeats, "restarts": RESTARTS})


if __name__ == "__main__":
    main()
