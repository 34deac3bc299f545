"""What every calibrator refuses, the registry, and what importing it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

import lm_eval_proca
from lm_eval_proca import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator, make_calibrator
from lm_eval_proca.errors import CalibrationError, ProcaError

GOOD = np.random.default_rng(0).normal(size=(20, 6))


@pytest.fixture(params=sorted(name for name in CALIBRATORS if not get_calibrator(name).uses_representations))
def calibrator(request) -> Calibrator:
    return get_calibrator(request.param)()


def spoiled(value: float, *positions: tuple[int, int]) -> np.ndarray:
    scores = GOOD.copy()
    for position in positions:
        scores[position] = value
    return scores


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (GOOD[:, 0], r"^Expected 2D array, got 1D array instead: .* Reshape your data"),
        (GOOD[:, :1], r"^Found array with 1 feature\(s\) \(shape=\(20, 1\)\) while a minimum of 2 is required by"),
        (GOOD[:0], r"^Found array with 0 sample\(s\) \(shape=\(0, 6\)\) while a minimum of 1 is required by"),
        (spoiled(np.nan, (7, 2)), r"^The score of row 7, label column 2 is NaN; every score must be a finite"),
        (spoiled(-np.inf, (3, 1), (9, 0)), r"^The score of row 3, label column 1 is -inf \(and 1 more\); every score"),
        ([["a", "b"]], r"^could not convert string to float: 'a'"),
        ([[1.0, 2.0], [1.0]], r"inhomogeneous"),
    ],
)
def test_refuses_scores_that_cannot_be_fitted(calibrator, scores, sentence):
    with pytest.raises(CalibrationError, match=sentence):
        calibrator.fit(scores)


def test_refuses_scores_that_cannot_be_predicted(calibrator):
    calibrator.fit(GOOD)
    with pytest.raises(CalibrationError, match=r"X has 2 features, but \w+ is expecting 6 features as input"):
        calibrator.predict(GOOD[:, :2])
    with pytest.raises(CalibrationError, match=r"row 4, label column 0 is inf"):
        calibrator.predict_log_proba(spoiled(np.inf, (4, 0)))


def test_predicts_no_documents_and_lists(calibrator):
    calibrator.fit(GOOD.tolist())
    assert calibrator.predict(np.empty((0, 6))).shape == (0,)
    np.testing.assert_array_equal(calibrator.predict(GOOD.tolist()), calibrator.predict(GOOD))
    np.testing.assert_array_equal(calibrator.predict(GOOD), calibrator.predict_log_proba(GOOD).argmax(axis=1))


def test_probabilities_are_those_of_the_log_probabilities_and_sum_to_one(calibrator):
    proba = calibrator.fit(GOOD).predict_proba(GOOD)
    np.testing.assert_array_equal(proba, np.exp(calibrator.predict_log_proba(GOOD)))
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)


def test_label_words_belong_to_the_fit_they_were_given_to(calibrator):
    calibrator.fit(GOOD, labels=(" a", *"bcdef"), origin={"model": "m"})
    assert (calibrator.labels_, calibrator.origin_) == (list("abcdef"), {"model": "m"})
    calibrator.fit(GOOD)
    assert (calibrator.labels_, calibrator.origin_) == (None, {})


@pytest.mark.parametrize("labels", [["a", "b"], [*"abcde", "e "]])
def test_refuses_words_that_cannot_name_the_columns(calibrator, labels):
    with pytest.raises(CalibrationError, match=r"cannot name 6 label columns; give each column its own word\.$"):
        calibrator.fit(GOOD, labels=labels)


def test_never_writes_into_the_scores(calibrator):
    scores = GOOD.copy()
    calibrator.fit(scores).predict(scores)
    np.testing.assert_array_equal(scores, GOOD)


def test_says_which_calibrators_there_are():
    with pytest.raises(
        CalibrationError, match=r"the known ones are bc, bc_prob, conca, domain, proca.* and none, the raw scores"
    ):
        get_calibrator("platt")


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_parameter_is_checked_before_anything_is_scored(name):
    for parameter in get_calibrator(name)().get_params():
        for value in (None, True, "uniformly", -1, np.nan, np.inf, [], [0.5, 0.6], [1.5, -0.5], {"a": 1}, object()):
            with pytest.raises(CalibrationError, match=f"'{parameter}' parameter of .*Calibrator must be"):
                make_calibrator(name, {parameter: value})


@pytest.mark.parametrize("prior", ["estimated", [0.3, 0.7], (0.2, 0.2, 0.6), np.array([0.5, 0.5])])
def test_priors_that_can_be_are_taken(prior):
    assert make_calibrator("proca_h", {"prior": prior}).prior is prior


def test_every_public_name_exists():
    for name in lm_eval_proca.__all__:
        assert getattr(lm_eval_proca, name).__doc__
    with pytest.raises(AttributeError):
        lm_eval_proca.TemperatureCalibrator  # noqa: B018


def test_errors_are_ours_and_value_errors():
    assert issubclass(CalibrationError, ProcaError)
    assert issubclass(CalibrationError, ValueError)


ALONE = """
import sys

class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent)
import numpy as np
from lm_eval_proca import load_calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator

scores = np.random.default_rng(0).normal(size=(60, 6))
for name in (name for name in CALIBRATORS if not get_calibrator(name).uses_representations):
    fitted = get_calibrator(name)().fit(scores)
    fitted.save(sys.argv[1])
    assert (load_calibrator(sys.argv[1]).predict(scores) == fitted.predict(scores)).all()
"""


def test_calibrators_need_nothing_but_scikit_learn(tmp_path):
    """As after `pip install scikit-learn` and `pip install --no-deps lm-eval-proca`."""
    required = metadata.requires("lm-eval-proca")
    names = {re.match(r"[\w.-]+", line)[0].replace("-", "_").lower() for line in required if "extra ==" not in line}
    of_scikit_learn = {"numpy", "scipy", "threadpoolctl"}
    absent = (names | {"pandas", "matplotlib"}) - {"scikit_learn"} - of_scikit_learn
    assert {"lm_eval", "torch", "transformers", "datasets", "pyarrow"} <= absent
    assert of_scikit_learn <= {re.match(r"\w+", line)[0] for line in metadata.requires("scikit-learn")}
    subprocess.run([sys.executable, "-c", ALONE.format(absent=absent), tmp_path / "saved.json"], check=True)


def test_the_registry_needs_nothing():
    program = "import sys, lm_eval_proca.calibration.registry; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "scipy", "sklearn", "torch", "lm_eval"}


def test_label_words_come_from_those_who_were_told_them(calibrator: Calibrator):
    words = ["a", "b", "c", "d", "e", "f"]
    fitted = calibrator.fit(GOOD, labels=words)
    assert fitted.predict_labels(GOOD).tolist() == [words[k] for k in fitted.predict(GOOD)]
    with pytest.raises(CalibrationError, match=r"knows no label words; give them to fit\(scores, labels="):
        calibrator.fit(GOOD).predict_labels(GOOD)
