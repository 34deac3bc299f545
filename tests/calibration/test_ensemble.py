"""One calibrator per prompt, and the mean of what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import KFold, cross_val_score

from lm_eval_proca import BatchCalibrator, PromptEnsemble, PrototypicalCalibrator, load_calibrator
from lm_eval_proca.calibration.ensemble import mean_of_prompts
from lm_eval_proca.calibration.registry import get_calibrator
from lm_eval_proca.errors import CalibrationError

PROMPTS, LABELS, DOCUMENTS = 3, 2, 240


@pytest.fixture(scope="module")
def gold() -> np.ndarray:
    return np.arange(DOCUMENTS) % LABELS


@pytest.fixture(scope="module")
def scores(gold: np.ndarray) -> np.ndarray:
    """Three prompts side by side, each with its own bias and its own mistakes."""
    rng = np.random.default_rng(0)
    biases = [[3, 0], [0, 3], [1, 0]]
    return np.hstack([1.5 * np.eye(LABELS)[gold] + rng.normal(size=(DOCUMENTS, LABELS)) + bias for bias in biases])


@pytest.fixture(scope="module")
def states(gold: np.ndarray) -> np.ndarray:
    """Two layers of each prompt, one prompt after the other."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(2 * PROMPTS, DOCUMENTS, 12)) + 2 * np.eye(12)[gold]


def part(scores: np.ndarray, k: int) -> np.ndarray:
    return scores[:, LABELS * k : LABELS * (k + 1)]


def test_a_mean_by_hand() -> None:
    one, other = np.log([[0.9, 0.1]]), np.log([[0.4, 0.6]])
    # 0.9 * 0.4 = 0.36 against 0.1 * 0.6 = 0.06, as square roots 0.6 against 0.2449...
    expected = 0.6 / (0.6 + np.sqrt(0.06))
    np.testing.assert_allclose(np.exp(mean_of_prompts(np.stack([one, other]))), [[expected, 1 - expected]])


def test_batch_calibration_of_three_prompts_written_out(scores: np.ndarray, gold: np.ndarray) -> None:
    log_proba = [log_softmax(part(scores, k), axis=1) for k in range(PROMPTS)]
    calibrated = [log_softmax(one - one.mean(axis=0), axis=1) for one in log_proba]
    ensemble = PromptEnsemble(BatchCalibrator(), n_prompts=PROMPTS).fit(scores)
    np.testing.assert_allclose(ensemble.predict_log_proba(scores), log_softmax(np.mean(calibrated, axis=0), axis=1))
    alone = [np.mean(one.argmax(axis=1) == gold) for one in calibrated]
    assert ensemble.score(scores, gold) > max(alone)


def test_one_prompt_is_the_calibrator_itself(scores: np.ndarray) -> None:
    alone = BatchCalibrator().fit(part(scores, 0))
    ensemble = PromptEnsemble(BatchCalibrator(), n_prompts=1).fit(part(scores, 0))
    np.testing.assert_allclose(ensemble.predict_proba(part(scores, 0)), alone.predict_proba(part(scores, 0)))


def test_fitted_members_are_the_same_ensemble(scores: np.ndarray) -> None:
    members = [BatchCalibrator().fit(part(scores, k), labels=["bad", "good"]) for k in range(PROMPTS)]
    made = PromptEnsemble.of(members, origin={"task": "reviews"})
    fitted = PromptEnsemble(BatchCalibrator(), n_prompts=PROMPTS).fit(scores)
    np.testing.assert_array_equal(made.predict_log_proba(scores), fitted.predict_log_proba(scores))
    assert (made.labels_, made.origin_) == (["bad", "good"], {"task": "reviews"})
    assert made.get_params(deep=False)["n_prompts"] == PROMPTS


# ------------------------------------------------------------------ scikit-learn's contract


def test_clones_and_parameters() -> None:
    ensemble = PromptEnsemble(PrototypicalCalibrator(n_init=3), n_prompts=4)
    copy = clone(ensemble).set_params(calibrator__n_init=7)
    assert copy.get_params()["calibrator__n_init"] == 7
    assert ensemble.calibrator.n_init == 3
    assert copy.n_prompts == 4
    assert not hasattr(copy, "members_")


def test_cross_validation_scores_against_labels_that_no_fit_has_seen(scores: np.ndarray, gold: np.ndarray) -> None:
    ensemble = PromptEnsemble(PrototypicalCalibrator(n_init=3), n_prompts=PROMPTS)
    folds = KFold(3, shuffle=True, random_state=0)
    by_hand = []
    for train, test in folds.split(scores):
        members = [PrototypicalCalibrator(n_init=3).fit(part(scores[train], k)) for k in range(PROMPTS)]
        said = [member.predict_log_proba(part(scores[test], k)) for k, member in enumerate(members)]
        by_hand.append(accuracy_score(gold[test], np.mean(said, axis=0).argmax(axis=1)))
    np.testing.assert_array_equal(cross_val_score(ensemble, scores, gold, cv=folds), by_hand)


def test_classes_are_the_labels_of_one_prompt(scores: np.ndarray) -> None:
    ensemble = PromptEnsemble(BatchCalibrator(), n_prompts=PROMPTS).fit(scores, labels=["bad", "good"])
    assert ensemble.classes_.tolist() == [0, 1]
    assert (ensemble.n_labels_, ensemble.n_features_in_) == (LABELS, LABELS * PROMPTS)
    assert len(ensemble.fit_report()["members"]) == PROMPTS


@pytest.mark.parametrize(
    ("params", "columns", "sentence"),
    [
        ({"n_prompts": 4}, 6, "6 columns cannot be the labels of 4 prompts side by side"),
        ({"n_prompts": 0}, 6, "'n_prompts' parameter of PromptEnsemble must be a whole number of at least 1"),
        ({"calibrator": "bc"}, 6, "'calibrator' parameter of PromptEnsemble must be a calibrator"),
    ],
)
def test_what_cannot_be_an_ensemble(params: dict[str, Any], columns: int, sentence: str) -> None:
    ensemble = PromptEnsemble(**{"calibrator": BatchCalibrator(), **params})
    with pytest.raises(CalibrationError, match=sentence):
        ensemble.fit(np.zeros((20, columns)))


# ------------------------------------------------------------------ hidden states


def test_hidden_states_of_all_prompts(scores: np.ndarray, states: np.ndarray, gold: np.ndarray) -> None:
    ensemble = PromptEnsemble(get_calibrator("proca_h")(), n_prompts=PROMPTS).fit(scores, representations=states)
    said = [
        member.predict_log_proba(part(scores, k), representations=states[2 * k : 2 * k + 2])
        for k, member in enumerate(ensemble.members_)
    ]
    found = ensemble.predict_log_proba(scores, representations=states)
    np.testing.assert_allclose(found, log_softmax(np.mean(said, axis=0), axis=1))
    assert ensemble.n_labels_ == LABELS
    assert np.mean(found.argmax(axis=1) == gold) > 0.95
    with pytest.raises(CalibrationError, match="5 layers cannot be those of 3 prompts"):
        ensemble.predict(scores, representations=states[:5])


def test_the_order_of_prompts_does_not_matter(scores: np.ndarray, states: np.ndarray) -> None:
    """Also where all prompts are fitted at once."""
    turned = np.hstack([part(scores, k) for k in (2, 0, 1)]), states[[4, 5, 0, 1, 2, 3]]
    one, other = (
        PromptEnsemble(get_calibrator("proca_h")(), n_prompts=PROMPTS)
        .fit(given, representations=layers)
        .predict_log_proba(given, representations=layers)
        for given, layers in ((scores, states), turned)
    )
    np.testing.assert_allclose(one, other, atol=1e-6)


# ------------------------------------------------------------------ files


@pytest.fixture
def saved(scores: np.ndarray, tmp_path: Path) -> Path:
    ensemble = PromptEnsemble(BatchCalibrator(), n_prompts=PROMPTS)
    ensemble.fit(scores, labels=["bad", "good"], origin={"task": "reviews"}).save(tmp_path / "ensemble.json")
    return tmp_path / "ensemble.json"


@pytest.mark.parametrize(("name", "params"), [("bc", {}), ("proca", {"n_init": 3}), ("proca_h", {})])
def test_one_file_predicts_the_same(
    name: str, params: dict[str, Any], scores: np.ndarray, states: np.ndarray, tmp_path: Path
) -> None:
    calibrator = get_calibrator(name)(**params)
    given = {"representations": states} if calibrator.uses_representations else {}
    ensemble = PromptEnsemble(calibrator, n_prompts=PROMPTS).fit(scores, labels=["bad", "good"], **given)
    ensemble.save(tmp_path / "ensemble.json")
    loaded = load_calibrator(tmp_path / "ensemble.json")
    assert isinstance(loaded, PromptEnsemble)
    assert loaded.predict_log_proba(scores, **given).tobytes() == ensemble.predict_log_proba(scores, **given).tobytes()
    assert loaded.fit_report() == ensemble.fit_report()
    assert loaded.labels_ == ["bad", "good"]


MISFIT = "does not hold what a calibrator of its kind needs"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(members=[]), MISFIT),
        (lambda d: d.update(members="bc"), MISFIT),
        (lambda d: d["members"].append({}), MISFIT),
        (lambda d: d["members"][1].pop("fitted"), MISFIT),
        (lambda d: d["members"][1].update(calibrator="os:system"), "no calibrator named 'os:system'"),
        (lambda d: d["members"][2]["fitted"]["mean_log_proba_"].update(values=[float("nan"), 0.0]), MISFIT),
        (lambda d: d.update(labels=list("abc")), "cannot name 2 label columns"),
        (lambda d: d.update(origin=3), MISFIT),
    ],
)
def test_damaged_files_are_refused(saved: Path, change: Any, sentence: str) -> None:
    document = json.loads(saved.read_text())
    change(document)
    saved.write_text(json.dumps(document))
    with pytest.raises(CalibrationError, match=sentence):
        load_calibrator(saved)


def test_members_of_other_labels_are_refused(saved: Path, tmp_path: Path) -> None:
    BatchCalibrator().fit(np.random.default_rng(0).normal(size=(30, 3))).save(tmp_path / "three.json")
    document, three = (json.loads(path.read_text()) for path in (saved, tmp_path / "three.json"))
    document["members"][1] = {key: three[key] for key in ("calibrator", "params", "fitted")}
    saved.write_text(json.dumps(document))
    with pytest.raises(CalibrationError, match=MISFIT):
        load_calibrator(saved)
