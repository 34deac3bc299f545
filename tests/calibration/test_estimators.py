"""Calibrators as scikit-learn estimators: its own checks, and its tools around them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from lm_eval_proca import BatchCalibrator, Calibrator, PrototypicalCalibrator, load_calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from tests.calibration.conftest import FromTwoLabels

QUICK = {"proca": {"n_init": 3}}
FEW_LABELS = {"proca_a": FromTwoLabels}
"""What stands in for a calibrator where scikit-learn's checks give two or three columns."""

WITHOUT_LABELS = {
    "check_classifiers_one_label": "classes are the columns of X, however few of them y shows",
    "check_classifiers_classes": "classes are the columns of X, not the words in y",
    "check_classifiers_train": "y is ignored, so it cannot have a wrong length",
    "check_classifiers_regression_target": "y is ignored, so it cannot be of a wrong kind",
    "check_supervised_y_no_nan": "y is ignored, so it cannot be infinite",
    "check_supervised_y_2d": "y is ignored, so it cannot be of a wrong shape",
}
"""The checks of scikit-learn that a calibrator must fail, because it never looks at a label."""


# Those that also need hidden states have tests of their own: scikit-learn's checks give X alone.
ON_SCORES = sorted(name for name in CALIBRATORS if not get_calibrator(name).uses_representations)


def expected_failures(estimator: Calibrator) -> dict[str, str]:
    if isinstance(estimator, PrototypicalCalibrator):
        return {
            **WITHOUT_LABELS,
            "check_fit2d_1sample": "our sentence counts documents, the check looks for '1 sample'",
        }
    return WITHOUT_LABELS


@parametrize_with_checks(
    [FEW_LABELS.get(name, get_calibrator(name))(**QUICK.get(name, {})) for name in ON_SCORES],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


WORDS = ["World", "Sports", "Tech", "Film", "Food", "Law"]


@pytest.fixture(params=ON_SCORES)
def calibrator(request) -> Calibrator:
    return get_calibrator(request.param)(**QUICK.get(request.param, {}))


@pytest.fixture(scope="module")
def made(made_scores):
    return made_scores(200, len(WORDS), separation=3.0)


def test_cross_validation_scores_against_labels_that_no_fit_has_seen(calibrator, made):
    folds = KFold(5, shuffle=True, random_state=0)
    by_hand = [
        accuracy_score(made.gold[test], clone(calibrator).fit(made.scores[train]).predict(made.scores[test]))
        for train, test in folds.split(made.scores)
    ]
    np.testing.assert_array_equal(cross_val_score(calibrator, made.scores, made.gold, cv=folds), by_hand)
    losses = cross_val_score(calibrator, made.scores, made.gold, cv=folds, scoring="neg_log_loss")
    first, test = next(folds.split(made.scores))
    proba = clone(calibrator).fit(made.scores[first]).predict_proba(made.scores[test])
    assert losses[0] == pytest.approx(-log_loss(made.gold[test], proba, labels=range(6)))


def test_labels_change_no_fit(calibrator, made):
    plain = clone(calibrator).fit(made.scores).predict_log_proba(made.scores)
    given = clone(calibrator).fit(made.scores, made.gold[::-1]).predict_log_proba(made.scores)
    np.testing.assert_array_equal(given, plain)


def test_a_pipeline_and_a_search_over_restarts(made):
    likelihoods = np.exp(made.scores)
    pipeline = make_pipeline(FunctionTransformer(np.log), PrototypicalCalibrator())
    search = GridSearchCV(pipeline, {"prototypicalcalibrator__n_init": [1, 5]}, scoring="accuracy", cv=3)
    search.fit(likelihoods, made.gold)
    best = search.best_estimator_[-1]
    assert len(best.lower_bounds_) == best.n_init == search.best_params_["prototypicalcalibrator__n_init"]
    expected = PrototypicalCalibrator(n_init=best.n_init).fit(made.scores).predict(made.scores)
    assert (search.predict(likelihoods) == expected).mean() > 0.99
    assert search.score(likelihoods, made.gold) > 0.9


def test_data_frames_name_the_labels(calibrator, made, tmp_path):
    frame = pd.DataFrame(made.scores, columns=WORDS)
    calibrator.fit(frame)
    assert calibrator.labels_ == calibrator.feature_names_in_.tolist() == WORDS
    np.testing.assert_array_equal(calibrator.predict(frame), clone(calibrator).fit(made.scores).predict(made.scores))
    calibrator.save(tmp_path / "saved.json")
    for known in (calibrator, load_calibrator(tmp_path / "saved.json")):
        np.testing.assert_array_equal(known.predict_proba(frame), calibrator.predict_proba(frame))
        with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
            known.predict(frame[WORDS[::-1]])
    assert calibrator.fit(frame, labels=list("abcdef")).labels_ == list("abcdef")
    assert calibrator.fit(made.scores).labels_ is None


def test_classes_are_the_columns(calibrator, made):
    calibrator.fit(made.scores)
    assert calibrator.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    assert calibrator.n_features_in_ == calibrator.n_labels_ == 6
    assert calibrator.score(made.scores, made.gold) == accuracy_score(made.gold, calibrator.predict(made.scores))


@pytest.mark.parametrize(
    "ask", [lambda c: c.predict([[0.0, 1.0]]), lambda c: c.fit_report(), lambda c: c.save("x"), lambda c: c.n_labels_]
)
def test_a_calibrator_that_is_not_fitted(calibrator, ask):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        ask(calibrator)


def test_a_failed_fit_is_no_fit():
    calibrator = PrototypicalCalibrator()
    with pytest.raises(ValueError, match="too few"):
        calibrator.fit([[0.0, 1.0, 2.0]])
    with pytest.raises(NotFittedError):
        calibrator.predict([[0.0, 1.0, 2.0]])


def test_whatever_numbers_a_calibrator_keeps_are_saved(made, tmp_path):
    calibrator = BatchCalibrator().fit(made.scores)
    kept = {"int32": np.int32, "uint8": np.uint8, "float32": np.float32, "float16": np.float16, "bool": np.bool_}
    for name, dtype in kept.items():
        setattr(calibrator, f"{name}_", np.array([[0, 1], [1, 1]], dtype=dtype))
    calibrator.number_, calibrator.word_ = np.int32(3), "word"
    calibrator.save(tmp_path / "saved.json")
    loaded = load_calibrator(tmp_path / "saved.json")
    for name, dtype in kept.items():
        assert getattr(loaded, f"{name}_").dtype == dtype
        np.testing.assert_array_equal(getattr(loaded, f"{name}_"), getattr(calibrator, f"{name}_"))
    assert (loaded.number_, loaded.word_) == (3, "word")
