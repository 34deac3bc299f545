"""Anchored prototypes: against scikit-learn's discriminant analysis, arithmetic by hand, and data with known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import helmert
from scipy.special import log_softmax, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from lm_eval_proca import AnchoredCalibrator, BatchCalibrator, RepresentationCalibrator, load_calibrator
from lm_eval_proca.calibration.anchored import fit_mixture
from lm_eval_proca.calibration.representation import principal_components
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.representations import unit_scale
from tests.calibration.conftest import FromTwoLabels


class Documents:
    """Documents of `labels` classes: weak and biased scores, hidden states of two layers that separate the classes."""

    def __init__(self, n: int = 400, labels: int = 2, *, signal: float = 1.0, separation: float = 4.0, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.truth = rng.permutation(np.arange(n) % labels)
        self.scores = signal * np.eye(labels)[self.truth] + rng.normal(size=(n, labels)) + np.linspace(0, 3, labels)
        centres = np.random.default_rng(99).normal(size=(2, labels, 64)) / 8
        self.hidden = rng.normal(size=(2, n, 64)) + separation * centres[:, self.truth] * np.sqrt(2)

    def part(self, chosen: slice | np.ndarray) -> Documents:
        new = object.__new__(Documents)
        new.truth, new.scores, new.hidden = self.truth[chosen], self.scores[chosen], self.hidden[:, chosen]
        return new

    def accuracy(self, calibrator: AnchoredCalibrator | BatchCalibrator) -> float:
        given = {"representations": self.hidden} if calibrator.uses_representations else {}
        return float(np.mean(calibrator.predict(self.scores, **given) == self.truth))


def fitted(documents: Documents, **params: object) -> RepresentationCalibrator:
    return RepresentationCalibrator(**params).fit(documents.scores, representations=documents.hidden)


@pytest.mark.parametrize(("n", "labels"), [(30, 2), (400, 2), (400, 4), (600, 14), (1000, 50)])
def test_new_documents_are_classified_better_than_by_batch_calibration(n: int, labels: int) -> None:
    both = Documents(2 * n, labels, signal=2.0, separation=5.0)
    seen, new = both.part(slice(0, n)), both.part(slice(n, None))
    assert new.accuracy(fitted(seen)) >= new.accuracy(BatchCalibrator().fit(seen.scores))
    assert n < 100 or new.accuracy(fitted(seen)) > new.accuracy(BatchCalibrator().fit(seen.scores)) + 0.05


def test_one_step_without_anchor_or_ridge_is_linear_discriminant_analysis() -> None:
    """With hard responsibilities, the M-step and its discriminant are scikit-learn's."""
    rng = np.random.default_rng(0)
    truth = np.arange(300) % 3
    x = rng.normal(size=(300, 5)) + rng.normal(size=(3, 5))[truth]
    mixture = fit_mixture([x], np.eye(3)[truth], ridge=0, strength=0, max_iter=1, tol=0, log_prior=np.zeros(3))
    reference = LinearDiscriminantAnalysis(solver="lsqr", priors=np.full(3, 1 / 3)).fit(x, truth)
    np.testing.assert_allclose(softmax(mixture.logits([x]), axis=1), reference.predict_proba(x), atol=1e-6)


def test_em_steps_by_hand() -> None:
    x, r = np.array([[0.0], [1.0], [5.0]]), np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    options = {"ridge": 0.5, "strength": 10, "tol": 0, "log_prior": np.log([0.5, 0.5])}
    mixture = fit_mixture([x], r, max_iter=1, **options)
    means = (r.T @ x)[:, 0] / r.sum(axis=0)  # holding them at themselves changes nothing in the first step
    variance = (r * (x - means) ** 2).sum() / 3 * 1.5
    logits = x * means / variance - means**2 / (2 * variance)
    np.testing.assert_allclose(mixture.logits([x]), logits, rtol=1e-9)
    assert mixture.separation == pytest.approx(abs(means[1] - means[0]) / np.sqrt(variance))

    q = softmax(logits, axis=1)
    moved = (10 * means + (q.T @ x)[:, 0]) / (10 + q.sum(axis=0))  # ten documents hold each mean where it was
    variance = (q * (x - moved) ** 2).sum() / 3 * 1.5
    logits = x * moved / variance - moved**2 / (2 * variance)
    np.testing.assert_allclose(fit_mixture([x], r, max_iter=2, **options).logits([x]), logits, rtol=1e-9)


def test_views_count_by_their_weights() -> None:
    rng = np.random.default_rng(0)
    first, second, r = rng.normal(size=(9, 2)), rng.normal(size=(9, 3)), softmax(rng.normal(size=(9, 2)), axis=1)
    options = {"strength": 1, "max_iter": 1, "tol": 0, "log_prior": np.zeros(2)}
    both = fit_mixture([first, second], r, weights=[0.5, 1.0], **options)
    alone = [fit_mixture([x], r, **options).logits([x]) for x in (first, second)]
    np.testing.assert_allclose(both.logits([first, second]), 0.5 * alone[0] + alone[1], rtol=1e-9)


def test_scores_of_four_labels_count_three_quarters_beside_hidden_states() -> None:
    documents = Documents(200, 4, signal=2.0)
    calibrator = fitted(documents)
    log_proba = log_softmax(documents.scores, axis=1)
    ratios = log_proba @ helmert(4).T
    states = [principal_components(unit_scale(layer), 32)[0] for layer in documents.hidden]
    views = [ratios - ratios.mean(axis=0), np.hstack(states)]
    anchor = softmax(log_proba - log_proba.mean(axis=0), axis=1)
    mixture = fit_mixture(views, anchor, strength=20, max_iter=50, tol=1e-4, log_prior=np.zeros(4), weights=[3 / 4, 1])
    expected = log_softmax(calibrator.temperature_ * mixture.logits(views), axis=1)
    found = calibrator.predict_log_proba(documents.scores, representations=documents.hidden)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_strong_anchor_is_not_left() -> None:
    documents = Documents(signal=2.0)
    loose, tied = fitted(documents, anchor_strength=0), fitted(documents, anchor_strength=1e6)
    anchor = BatchCalibrator().fit(documents.scores).predict(documents.scores)
    agreement = [
        np.mean(c.predict(documents.scores, representations=documents.hidden) == anchor) for c in (loose, tied)
    ]
    assert agreement[1] >= agreement[0]


@pytest.mark.parametrize("prior", ["uniform", "estimated", [0.2] * 5])
def test_up_to_five_labels_are_left_to_batch_calibration(prior: object) -> None:
    with pytest.raises(CalibrationError, match=r"up to 5 labels proca_a is batch calibration; take that"):
        AnchoredCalibrator(prior=prior).fit(Documents(300, 5).scores)
    assert AnchoredCalibrator().fit(Documents(300, AnchoredCalibrator.min_labels).scores).n_iter_ > 0
    assert fitted(Documents(300, RepresentationCalibrator.min_labels)).n_iter_ > 0


def test_few_labels_of_known_shares_are_shifted_to_them_without_a_mixture(tmp_path: Path) -> None:
    scores = Documents(300, 3, signal=2.0).scores
    AnchoredCalibrator(prior=[0.5, 0.3, 0.2]).fit(scores).save(tmp_path / "saved.json")
    calibrator = load_calibrator(tmp_path / "saved.json")
    np.testing.assert_allclose(calibrator.predict_proba(scores).mean(axis=0), [0.5, 0.3, 0.2], atol=1e-6)
    shift = calibrator.predict_log_proba(scores) - log_softmax(scores, axis=1)
    np.testing.assert_allclose(np.ptp(shift - shift[:, :1], axis=0), 0, atol=1e-9)
    report = calibrator.fit_report()
    assert report["kept_anchor"] == "the scores of 3 labels are too few for a mixture"
    assert "n_iter" not in report


def test_many_labels_that_raise_each_other_gain_from_the_mixture() -> None:
    rng = np.random.default_rng(1)
    truth = np.arange(1400) % 14
    evidence = 3 * np.eye(14)[truth] + 2 * np.eye(14)[(truth + 1) % 14] * rng.normal(1, 0.5, size=(1400, 1))
    scores = evidence + rng.normal(size=(1400, 14)) * np.linspace(0.5, 3, 14)
    seen, new = slice(0, 700), slice(700, None)
    accuracy = {
        c: np.mean(c().fit(scores[seen]).predict(scores[new]) == truth[new])
        for c in (AnchoredCalibrator, BatchCalibrator)
    }
    assert accuracy[AnchoredCalibrator] > accuracy[BatchCalibrator] + 0.02


def test_labels_in_another_order_give_the_same_decisions() -> None:
    documents, order = Documents(400, 5, signal=2.0), [3, 0, 4, 1, 2]
    straight = fitted(documents).predict(documents.scores, representations=documents.hidden)
    turned = RepresentationCalibrator().fit(documents.scores[:, order], representations=documents.hidden)
    again = np.array(order)[turned.predict(documents.scores[:, order], representations=documents.hidden)]
    assert np.mean(straight == again) > 0.995  # rounding may decide a tie


def test_a_fit_repeats_and_ignores_the_scale_and_constant_of_what_it_is_given() -> None:
    documents = Documents()
    first = fitted(documents).predict_log_proba(documents.scores, representations=documents.hidden)
    shifted, scaled = documents.scores + 7, documents.hidden * 1000
    again = RepresentationCalibrator().fit(shifted, representations=scaled)
    np.testing.assert_allclose(again.predict_log_proba(shifted, representations=scaled), first, atol=1e-3)


def test_half_precision_is_enough() -> None:
    documents = Documents()
    stored = np.stack([unit_scale(layer) for layer in documents.hidden]).astype(np.float16)
    exact = fitted(documents).predict_log_proba(documents.scores, representations=documents.hidden)
    rounded = RepresentationCalibrator().fit(documents.scores, representations=stored)
    np.testing.assert_allclose(rounded.predict_log_proba(documents.scores, representations=stored), exact, atol=0.02)


def test_a_saved_calibrator_predicts_the_same(tmp_path: Path) -> None:
    documents = Documents()
    calibrator = fitted(documents)
    calibrator.save(tmp_path / "h.json")
    loaded = load_calibrator(tmp_path / "h.json")
    given = {"representations": documents.hidden}
    np.testing.assert_allclose(
        loaded.predict_log_proba(documents.scores, **given), calibrator.predict_log_proba(documents.scores, **given)
    )
    assert loaded.fit_report() == calibrator.fit_report()


class TestEvidence:
    """Each statistic, and data that makes it speak."""

    def test_probabilities_are_about_as_sure_as_they_are_right(self) -> None:
        both = Documents(1200, signal=2.0, separation=2.0)
        seen, new = both.part(slice(0, 600)), both.part(slice(600, None))
        calibrator = fitted(seen)
        confidence = calibrator.predict_proba(new.scores, representations=new.hidden).max(axis=1).mean()
        assert confidence == pytest.approx(new.accuracy(calibrator), abs=0.1)
        assert calibrator.estimated_accuracy_ == pytest.approx(new.accuracy(calibrator), abs=0.1)

    def test_no_signal_is_said(self) -> None:
        documents = Documents(200, signal=0.0, separation=0.0)
        noise = RepresentationCalibrator(n_components=1).fit(0.01 * documents.scores, representations=documents.hidden)
        assert noise.separation_ < 1
        assert any("too close to tell them apart" in line for line in noise.fit_report()["warnings"])

    def test_an_unstable_fit_returns_the_anchor(self) -> None:
        rng = np.random.default_rng(0)
        scores, hidden = rng.normal(size=(60, 20)) * 0.1, rng.normal(size=(1, 60, 64))
        calibrator = RepresentationCalibrator().fit(scores, representations=hidden)
        assert calibrator.stability_ < 0.5
        assert "agree on only" in calibrator.kept_anchor_
        assert calibrator.fit_report()["warnings"][0].startswith("Batch calibration was kept: two fits on half")
        np.testing.assert_allclose(
            calibrator.predict_log_proba(scores, representations=hidden),
            BatchCalibrator().fit(scores).predict_log_proba(scores),
        )

    def test_a_label_that_emptied_returns_the_anchor(self) -> None:
        """Two kinds of documents, three labels: with weights that are learned and no anchor to hold it, one goes."""
        rng = np.random.default_rng(0)
        kind = np.arange(600) % 2
        scores = np.column_stack([4 * (kind == 0), 4 * (kind == 1), np.zeros(600)])
        scores = scores + rng.normal(size=(600, 3)) * [1, 1, 0.3]
        hidden = rng.normal(size=(1, 600, 32)) + 2 * kind[:, None] * (np.arange(32) < 4)
        free = RepresentationCalibrator(anchor_strength=0, prior="estimated", max_iter=200)
        calibrator = free.fit(scores, representations=hidden)
        assert calibrator.smallest_share_ < 0.25
        assert "of the documents that the anchor gives it" in calibrator.kept_anchor_

    def test_agreement_and_skew_by_hand(self) -> None:
        documents = Documents()
        calibrator = fitted(documents)
        predicted = calibrator.predict(documents.scores, representations=documents.hidden)
        log_proba = log_softmax(documents.scores, axis=1)
        anchor = softmax(log_proba - log_proba.mean(axis=0), axis=1)
        assert calibrator.agreement_ == pytest.approx(np.mean(predicted == anchor.argmax(axis=1)))
        assert calibrator.raw_agreement_ == pytest.approx(np.mean(predicted == documents.scores.argmax(axis=1)))
        assert calibrator.skew_ == pytest.approx(abs(np.mean(predicted == 0) - anchor[:, 0].mean()))


class TestPrior:
    def skewed(self) -> tuple[Documents, Documents]:
        everything = Documents(4000, signal=2.0, separation=1.0)
        rows = np.concatenate([np.flatnonzero(everything.truth == 0)[:60], np.flatnonzero(everything.truth == 1)[:540]])
        return everything.part(rows), everything.part(slice(2000, None))

    def test_a_known_prior_mends_what_unbalanced_rows_break(self) -> None:
        unlabeled, new = self.skewed()
        assert new.accuracy(fitted(unlabeled, prior=[0.1, 0.9])) > new.accuracy(BatchCalibrator().fit(unlabeled.scores))

    def test_the_anchor_meets_a_known_prior(self) -> None:
        unlabeled, _ = self.skewed()
        calibrator = fitted(unlabeled, prior=[0.1, 0.9])
        anchor = softmax(log_softmax(unlabeled.scores, axis=1) - calibrator.anchor_shift_, axis=1)
        np.testing.assert_allclose(anchor.mean(axis=0), [0.1, 0.9], atol=1e-6)

    @pytest.mark.parametrize("prior", ["flat", [0.5, 0.6], [1.0], [1.5, -0.5]])
    def test_a_prior_that_is_none_is_refused(self, prior: object) -> None:
        with pytest.raises(CalibrationError, match="'prior' parameter"):
            fitted(Documents(50), prior=prior)


@pytest.mark.parametrize(
    "scores",
    [
        np.tile(np.linspace(-3, -1, 6), (40, 1)),
        np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
        np.random.default_rng(1).normal(size=(3, 6)),
        np.zeros((2, 3)),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of variance ratios in PCA, which nobody reads
def test_documents_that_are_alike_or_few_can_be_fitted(scores: np.ndarray) -> None:
    hidden = np.random.default_rng(0).normal(size=(2, len(scores), 8))
    for found in (
        FromTwoLabels().fit(scores).predict_proba(scores),
        RepresentationCalibrator().fit(scores, representations=hidden).predict_proba(scores, representations=hidden),
        RepresentationCalibrator()
        .fit(scores, representations=np.ones_like(hidden))
        .predict_proba(scores, representations=np.ones_like(hidden)),
    ):
        assert np.isfinite(found).all()


def test_what_cannot_be_used_ends_in_a_sentence() -> None:
    documents = Documents(50)
    with pytest.raises(CalibrationError, match="needs representations beside the scores"):
        RepresentationCalibrator().fit(documents.scores)
    with pytest.raises(CalibrationError, match=r"have the shape \(2, 49, 64\)"):
        RepresentationCalibrator().fit(documents.scores, representations=documents.hidden[:, 1:])
    with pytest.raises(CalibrationError, match="not finite"):
        RepresentationCalibrator().fit(documents.scores, representations=documents.hidden * np.nan)
    with pytest.raises(CalibrationError, match="1 layers of width 64, the fit had 2 of width 64"):
        fitted(documents).predict(documents.scores, representations=documents.hidden[:1])


def test_principal_components_rebuild_the_states() -> None:
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    components, axes, mean = principal_components(x, 6)
    np.testing.assert_allclose((x - mean) @ axes, components, atol=1e-5)
    assert components.var(axis=0).sum() == pytest.approx(1)


@pytest.mark.slow
def test_large_sets_can_be_fitted() -> None:
    """3000 documents, 14 labels, two layers of width 4096: about two seconds on two idle cores."""
    rng = np.random.default_rng(0)
    scores, hidden = (
        rng.normal(size=(3000, 14)),
        rng.standard_normal(size=(2, 3000, 4096), dtype=np.float32).astype(np.float16),
    )
    calibrator = RepresentationCalibrator().fit(scores, representations=hidden)
    assert calibrator.layer_coef_.shape == (2, 4096, 14)
