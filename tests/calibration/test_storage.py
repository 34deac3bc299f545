"""Saved calibrators: the same predictions, and refused when anything is wrong with the file."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca import Calibrator, load_calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import CalibrationError


@pytest.fixture(scope="module")
def scores(made_scores) -> np.ndarray:
    return made_scores(200, 4).scores


@pytest.fixture
def saved(scores, tmp_path) -> Path:
    path = tmp_path / "calibrator.json"
    get_calibrator("bc")().fit(scores).save(path)
    return path


def rewrite(path: Path, change) -> None:
    """Change the parsed file."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("bc", {}),
        ("bc_prob", {}),
        ("conca", {}),
        ("domain", {}),
        ("ucpa", {"prior": [0.1, 0.2, 0.3, 0.4]}),
        *(("proca", {"n_init": 3, "covariance_type": kind}) for kind in ("full", "tied", "diag")),
        ("proca", {"n_init": np.int64(3), "tol": 1e-2, "weights": "fitted", "features": "prob"}),
    ],
)
def test_a_loaded_calibrator_is_the_saved_one(scores, tmp_path, name, params):
    calibrator = get_calibrator(name)(**params).fit(scores)
    calibrator.save(tmp_path / "calibrator.json")
    loaded = load_calibrator(str(tmp_path / "calibrator.json"))
    assert type(loaded) is type(calibrator)
    assert loaded.get_params() == calibrator.get_params()
    assert loaded.fit_report() == calibrator.fit_report()
    for attribute, value in vars(calibrator).items():
        np.testing.assert_array_equal(getattr(loaded, attribute), value)
    assert loaded.predict_log_proba(scores).tobytes() == calibrator.predict_log_proba(scores).tobytes()


def test_label_words_and_origin_are_kept_through_files(scores, tmp_path):
    labels, origin = ["Sport", "Wörld", "a, b", "4"], {"task": "news", "model": "some/model", "num_fewshot": 4}
    get_calibrator("bc")().fit(scores, labels=labels, origin=origin).save(tmp_path / "first.json")
    load_calibrator(tmp_path / "first.json").save(tmp_path / "second.json")
    loaded = load_calibrator(tmp_path / "second.json")
    assert (loaded.labels_, loaded.origin_) == (labels, origin)


def test_a_file_without_label_words_is_loaded(saved):
    assert json.loads(saved.read_text()).keys() == {"format", "format_version", "calibrator", "params", "fitted"}
    loaded = load_calibrator(saved)
    assert (loaded.labels_, loaded.origin_) == (None, {})


def test_restarts_that_failed_are_kept(tmp_path):
    rng = np.random.default_rng(3)
    scores = np.vstack([np.full((3, 3), 8.0), rng.normal(size=(40, 3)) * 3])
    calibrator = get_calibrator("proca")(n_init=12, reg_covar=0.0, features="log_likelihood").fit(scores)
    calibrator.save(tmp_path / "calibrator.json")
    assert np.isnan(calibrator.lower_bounds_).any()
    np.testing.assert_array_equal(load_calibrator(tmp_path / "calibrator.json").lower_bounds_, calibrator.lower_bounds_)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_refuses_a_truncated_file(saved, part):
    content = saved.read_bytes().rstrip()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(CalibrationError, match=r"is damaged or not a calibrator file; fit the calibrator again"):
        load_calibrator(saved)


MISFIT = "does not hold what a calibrator of its kind needs"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.update(format="zip"), "is not a calibrator file"),
        (lambda d: d.update(format_version=1), "has format version 1 and this lm-eval-proca reads 2"),
        (lambda d: d.pop("format_version"), "has format version None"),
        (lambda d: d.pop("fitted"), MISFIT),
        (lambda d: d.pop("params"), MISFIT),
        (lambda d: d.update(labels=list("abc")), "cannot name 4 label columns"),
        (lambda d: d.update(labels=4), MISFIT),
        (lambda d: d.update(origin="model"), MISFIT),
        (lambda d: d.update(calibrator="os:system"), "no calibrator named 'os:system'"),
        (lambda d: d.update(calibrator=["bc"]), MISFIT),
        (lambda d: d.update(params={"n_init": 3}), "calibrator bc has no parameter n_init"),
        (lambda d: d["fitted"].update(predict=1), MISFIT),
        (lambda d: d["fitted"].update(__class__=1), MISFIT),
        (lambda d: d["fitted"].pop("mean_log_proba_"), MISFIT),
        (lambda d: d["fitted"].update(n_features_in_=3), MISFIT),
        (lambda d: d["fitted"].pop("classes_"), MISFIT),
        (lambda d: d["fitted"]["classes_"].update(shape=[2, 2]), MISFIT),
        (lambda d: d["fitted"]["mean_log_proba_"].update(dtype="object"), MISFIT),
        (lambda d: d["fitted"]["mean_log_proba_"].update(shape=[5]), MISFIT),
        (lambda d: d["fitted"]["mean_log_proba_"]["values"].pop(), MISFIT),
        (lambda d: d["fitted"]["mean_log_proba_"].update(values=["a", "b", "c", "d"]), MISFIT),
        (lambda d: d["fitted"]["mean_log_proba_"].update(values=[-1.0, -2.0, float("nan"), -3.0]), MISFIT),
        (lambda d: d["fitted"]["mean_log_proba_"].update(values=[-1.0, -2.0, None, -3.0]), MISFIT),
        (lambda d: d["fitted"]["classes_"].update(values=[0, 1, 2.5, 3]), MISFIT),
    ],
)
def test_refuses_a_file_whose_parts_do_not_fit(saved, change, sentence):
    rewrite(saved, change)
    with pytest.raises(CalibrationError, match=sentence):
        load_calibrator(saved)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.float64, [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, np.nan, np.inf]),
        (np.float32, [0.1, 1 / 3, 1e-45]),
        (np.uint64, [0, 2**64 - 1]),
        (np.int8, [-128, 127]),
        (np.bool_, [True, False]),
        (np.float64, np.empty((0, 3))),
        (np.int64, np.empty((2, 0))),
    ],
)
def test_arrays_come_back_with_their_numbers_type_and_shape(saved, dtype, values):
    calibrator = load_calibrator(saved)
    calibrator.kept_ = np.array(values, dtype=dtype)
    calibrator.save(saved)
    loaded = load_calibrator(saved).kept_
    assert (loaded.dtype, loaded.shape) == (calibrator.kept_.dtype, calibrator.kept_.shape)
    np.testing.assert_array_equal(loaded, calibrator.kept_)


def test_never_unpickles(saved, tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "exploded",)

    saved.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CalibrationError, match="is damaged or not a calibrator file"):
        load_calibrator(saved)
    assert not (tmp_path / "exploded").exists()


def test_refuses_what_is_not_an_object_or_endlessly_nested(saved):
    for text, sentence in (
        ("[1, 2]", "is not a calibrator file"),
        ("[" * 100_000, "is damaged or not a calibrator file"),
    ):
        saved.write_text(text)
        with pytest.raises(CalibrationError, match=sentence):
            load_calibrator(saved)


def test_says_which_file_is_missing(tmp_path):
    with pytest.raises(CalibrationError, match=r"calibrator file .*absent\.json cannot be read: No such file"):
        load_calibrator(tmp_path / "absent.json")


def test_says_where_it_cannot_write(scores, tmp_path):
    with pytest.raises(CalibrationError, match=r"cannot be saved as .*absent.*: No such file"):
        get_calibrator("bc")().fit(scores).save(tmp_path / "absent" / "calibrator.json")


def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(saved, scores, monkeypatch):
    before = saved.read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(CalibrationError, match=r"cannot be saved as .*: No space left on device\.$"):
        get_calibrator("conca")().fit(scores).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


class HalvingCalibrator(Calibrator):
    """A user's own: one file, one line of registration."""

    def _fit(self, scores):
        self.half_ = scores.mean(axis=0) / 2

    def _calibrate(self, scores):
        return scores - self.half_


def test_a_calibrator_of_ones_own_is_saved_once_it_is_registered(scores, tmp_path, monkeypatch):
    calibrator = HalvingCalibrator().fit(scores)
    with pytest.raises(CalibrationError, match="HalvingCalibrator cannot be saved because it has no name; give"):
        calibrator.save(tmp_path / "own.json")
    assert calibrator.fit_report()["method"] == "HalvingCalibrator"
    monkeypatch.setitem(CALIBRATORS, "halving", f"{__name__}:HalvingCalibrator")
    calibrator.save(tmp_path / "own.json")
    np.testing.assert_array_equal(load_calibrator(tmp_path / "own.json").predict(scores), calibrator.predict(scores))
    assert calibrator.fit_report()["method"] == "halving"
