from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lm_eval_proca import BatchCalibrator, ContextualCalibrator, PrototypicalCalibrator
from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.scores.fitting import FOLD_SEED, fit, fit_all
from lm_eval_proca.scores.score_table import ScoreTable
from tests.score_tables import made_table, some_rows, without

CALIBRATORS = [BatchCalibrator(), PrototypicalCalibrator(n_init=3)]


def only_evaluation_rows(eval_rows: int = 83, **shape: int) -> ScoreTable:
    return without(made_table(eval_rows=eval_rows, **shape), "estimate", "content_free")


def test_an_estimate_set_calibrates_the_evaluation_rows_in_one_fit() -> None:
    table = made_table()
    found = fit(BatchCalibrator(), table)
    by_hand = BatchCalibrator().fit(table.scores_of("estimate"))
    np.testing.assert_allclose(found.log_proba, by_hand.predict_log_proba(table.scores_of("eval")))
    assert (found.documents, found.folds) == (list(range(200)), 1)
    assert found.calibrator.labels_ == ["Negative", "Positive"]


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=repr)
def test_every_document_is_calibrated_by_a_fit_that_has_not_seen_it(calibrator: Calibrator) -> None:
    table = only_evaluation_rows()
    scores = table.scores_of("eval")
    found = fit(calibrator, table)
    # Numbers 0 1 2 3 4 0 1 ... are dealt out by a seeded shuffle; each is the fold of one document.
    dealt = np.random.default_rng(FOLD_SEED).permutation([row % 5 for row in range(83)])
    seen_by = dict.fromkeys(range(83), 0)
    for fold in range(5):
        inside = [row for row in range(83) if dealt[row] == fold]
        outside = [row for row in range(83) if dealt[row] != fold]
        assert len(inside) in (16, 17)
        by_hand = type(calibrator)(**calibrator.get_params()).fit(scores[outside])
        np.testing.assert_allclose(found.log_proba[inside], by_hand.predict_log_proba(scores[inside]))
        for row in inside:
            seen_by[row] += 1
    assert set(seen_by.values()) == {1}
    on_all = type(calibrator)(**calibrator.get_params()).fit(scores)
    np.testing.assert_allclose(found.calibrator.predict_log_proba(scores), on_all.predict_log_proba(scores))
    assert found.folds == 5


def test_what_a_document_scores_does_not_change_its_own_fit() -> None:
    """Its probabilities move by what its own score moved, and not by a different mean."""
    table, row = only_evaluation_rows(), 7
    changed = replace(table, scores=table.scores.copy())
    changed.scores[row, 0] += 30.0
    before, after = fit(BatchCalibrator(), table).log_proba, fit(BatchCalibrator(), changed).log_proba
    odds = [log_proba[row, 0] - log_proba[row, 1] for log_proba in (before, after)]
    assert odds[1] - odds[0] == pytest.approx(30.0)
    assert not np.allclose(np.delete(before, row, axis=0), np.delete(after, row, axis=0))


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=repr)
def test_the_order_of_rows_in_the_file_does_not_matter(calibrator: Calibrator) -> None:
    table = only_evaluation_rows()
    shuffled = some_rows(table, np.random.default_rng(1).permutation(83))
    assert not np.array_equal(shuffled.scores, table.scores)
    first, again = fit(calibrator, table), fit(calibrator, shuffled)
    assert again.documents == first.documents == list(range(83))
    np.testing.assert_array_equal(again.log_proba, first.log_proba)


def test_too_few_documents_for_the_labels_are_a_sentence() -> None:
    assert fit(BatchCalibrator(), only_evaluation_rows(20, labels=4)).folds == 5
    fits, failures = fit_all(only_evaluation_rows(19, labels=4), {"bc": BatchCalibrator()})
    assert fits == {}
    assert failures == {
        "bc": "19 evaluation documents are too few to calibrate 4 labels on themselves; score at least 20, or give "
        "unlabeled rows of their own."
    }


def test_calibrators_never_depend_on_any_label() -> None:
    for table in (made_table(), only_evaluation_rows()):
        rng = np.random.default_rng(0)
        shuffled = replace(table, gold=rng.permutation(table.gold), estimate_gold=rng.permutation(table.estimate_gold))
        for calibrator in CALIBRATORS:
            np.testing.assert_array_equal(fit(calibrator, table).log_proba, fit(calibrator, shuffled).log_proba)


def test_a_part_of_the_rows_is_what_is_fitted() -> None:
    table, part = made_table(), np.array([5, 2, 99])
    fitted = fit(BatchCalibrator(), table, rows=part).calibrator
    expected = BatchCalibrator().fit(table.scores_of("estimate")[part])
    np.testing.assert_array_equal(fitted.mean_log_proba_, expected.mean_log_proba_)


def test_a_part_of_the_evaluation_rows_is_cross_fitted_too() -> None:
    table, part = only_evaluation_rows(), np.arange(40)
    found = fit(BatchCalibrator(), table, rows=part)
    changed = replace(table, scores=table.scores.copy())
    changed.scores[60, 0] += 30.0  # not in the part: no fit knows it
    again = fit(BatchCalibrator(), changed, rows=part)
    np.testing.assert_array_equal(np.delete(found.log_proba, 60, axis=0), np.delete(again.log_proba, 60, axis=0))


def test_fitting_leaves_the_calibrator_as_it_was() -> None:
    calibrator = BatchCalibrator()
    assert fit(calibrator, made_table()).calibrator is not calibrator
    assert not hasattr(calibrator, "mean_log_proba_")


def test_contextual_calibration_needs_content_free_inputs() -> None:
    with pytest.raises(CalibrationError, match="fitted on scores of content-free inputs, which only the score table"):
        fit(ContextualCalibrator(), only_evaluation_rows())
