from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pandas as pd
import pytest
from lm_eval.tasks import TaskManager
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from lm_eval_proca import BatchCalibrator, TextClassifier
from lm_eval_proca.classify.storage import CALIBRATOR, CLASSIFIER
from lm_eval_proca.errors import ModelError, TextsError
from tests.classify.conftest import LABELS, TEMPLATE
from tests.conftest import made_sentences, write_jsonl

TASK = """
task: reviews
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Review: {{{{sentence.strip()}}}}\\nSentiment:"
doc_to_target: label
doc_to_choice: [good, bad]
metric_list: [{{metric: acc}}]
"""


def classifier(lm: Any, **params: Any) -> TextClassifier:
    return TextClassifier(**{"labels": LABELS, "template": TEMPLATE, "model": lm, **params})


@pytest.mark.parametrize("method", ["bc", "proca_h"])
def test_labels_are_those_of_lm_eval_with_the_same_prompt(method: str, lm, tmp_path: Path):
    """The same rows as a task of lm-eval's own kind, calibrated on themselves by `proca.calibrate=true`."""
    rows = made_sentences(80, seed=6)
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "reviews.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    manager = TaskManager(include_path=tmp_path, include_defaults=False, metadata={"proca.calibrate": True})
    results = lm_eval.simple_evaluate(model=lm, tasks=["reviews"], task_manager=manager, bootstrap_iters=0)
    samples = [one for one in results["samples"]["reviews"] if one["filter"] == method]
    expected = [LABELS[np.argmax([score for score, _ in one["filtered_resps"]])] for one in samples]

    labels = classifier(lm, calibrator=method).fit_predict([row["sentence"] for row in rows])
    assert labels.tolist() == expected
    gold = [LABELS[row["label"]] for row in rows]
    assert np.mean(labels == gold) == pytest.approx(results["results"]["reviews"][f"acc,{method}"], abs=1e-12)


def test_the_default_calibrator_is_what_the_model_allows(lm, stock_lm, texts: list[str]):
    assert classifier(lm).fit(texts).report_["calibrator"] == "proca_h"
    assert classifier(stock_lm).fit(texts).report_["calibrator"] == "bc"
    by_hand = classifier(stock_lm, calibrator=BatchCalibrator()).fit(texts)
    assert by_hand.predict(texts).tolist() == classifier(stock_lm).fit(texts).predict(texts).tolist()


def test_it_is_a_classifier_of_scikit_learn(lm, texts: list[str]):
    made = classifier(lm, calibrator="bc")
    assert made.get_params()["labels"] is LABELS
    assert clone(made).model is lm
    with pytest.raises(NotFittedError):
        made.predict(texts)
    gold = [LABELS[i % 2] for i in range(len(texts))]
    fitted = clone(made).fit(texts, gold)
    assert fitted.classes_.tolist() == ["bad", "good"]
    proba = fitted.predict_proba(texts)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert fitted.classes_[proba.argmax(axis=1)].tolist() == fitted.predict(texts).tolist()
    assert fitted.score(texts, gold) == np.mean(fitted.predict(texts) == gold)

    scores = cross_val_score(made, np.array(texts), gold, cv=3)
    assert scores.shape == (3,)
    # scikit-learn takes the columns of probabilities to be in alphabetical order.
    losses = cross_val_score(made, texts, gold, cv=2, scoring="neg_log_loss")
    by_hand = cross_val_score(made, texts, gold, cv=2, scoring=_log_loss)
    np.testing.assert_allclose(losses, -by_hand)


def _log_loss(fitted: TextClassifier, texts: list[str], gold: list[str]) -> float:
    proba = fitted.predict_proba(texts)
    return -float(np.mean([np.log(proba[i, fitted.classes_.tolist().index(y)]) for i, y in enumerate(gold)]))


def test_labels_are_never_read(lm, texts: list[str]):
    one, other = (classifier(lm).fit(texts, y).predict_proba(texts) for y in (None, ["good"] * len(texts)))
    np.testing.assert_array_equal(one, other)


def test_rows_may_be_mappings_or_a_data_frame(lm, texts: list[str]):
    plain = classifier(lm, calibrator="bc").fit(texts).predict_proba(texts)
    frame = pd.DataFrame({"body": texts, "other": 1})
    np.testing.assert_allclose(classifier(lm, calibrator="bc").fit(frame).predict_proba(frame), plain)
    two = classifier(lm, template="{body} {place}:", calibrator="bc")
    rows = [{"body": text, "place": "Oslo"} for text in texts]
    assert len(two.fit(rows).predict(rows)) == len(texts)
    with pytest.raises(TextsError, match="shows the columns body, place, but there is a bare str"):
        two.fit(texts)
    with pytest.raises(TextsError, match="list of texts"):
        two.fit("a text")


def test_a_text_that_cannot_be_used_has_no_label(lm, texts: list[str], caplog: pytest.LogCaptureFixture):
    odd = [*texts[:20], "", "word " * 2000, *texts[20:], None]
    made = classifier(lm)
    with caplog.at_level(logging.WARNING, "lm_eval.proca"):
        found = made.fit_predict(odd)
    assert np.flatnonzero(found == "").tolist() == [20, 21, 62]
    assert "3 without a label: text 20 is empty; text 21 is too long for the model" in caplog.text
    assert np.isnan(made.predict_proba(odd)[[20, 21, 62]]).all()
    assert found[found != ""].tolist() == classifier(lm).fit_predict(texts).tolist()
    with pytest.raises(TextsError, match="None of the rows"):
        made.fit(["", " "])
    with pytest.raises(TextsError, match="9 usable texts are too few to calibrate on; give at least 10"):
        made.fit(texts[:9])


def test_of_many_texts_a_fixed_part_is_fitted_on(lm):
    many = [row["sentence"] for row in made_sentences(120, seed=8)]
    made = classifier(lm, fit_rows=40, calibrator="bc")
    labels = made.fit_predict(many)
    assert made.report_["fitted_rows"] == 40
    assert set(labels) <= set(LABELS)
    assert np.mean(labels == made.predict(many)) > 0.8  # most are labeled by the very same fit
    assert (labels == classifier(lm, fit_rows=40, calibrator="bc").fit_predict(many)).all()


@pytest.mark.parametrize(
    "params",
    [
        {"demonstrations": [("a dull film", "bad"), ("a warm song", "good")], "prompts": 2},
        {"demonstrations": [(f"a film {i}", LABELS[i % 2]) for i in range(9)], "num_fewshot": 2, "prompts": 2},
        {"template": [TEMPLATE, "{body} All in all:"]},
    ],
    ids=["orders", "draws", "templates"],
)
def test_several_prompts_are_averaged_and_saved(params: dict[str, Any], lm, texts: list[str], tmp_path: Path):
    made = classifier(lm, **params).fit(texts)
    assert made.report_["prompts"] == 2
    made.save(tmp_path)
    again = TextClassifier.load(tmp_path, model=lm)
    np.testing.assert_allclose(again.predict_proba(texts), made.predict_proba(texts), atol=1e-6)


def test_demonstrations_of_a_file(lm, texts: list[str], tmp_path: Path):
    (tmp_path / "shown.csv").write_text("body,label\na dull film,bad\na warm song,good\n")
    of_file = classifier(lm, demonstrations=tmp_path / "shown.csv", calibrator="bc").fit(texts)
    shown = [("a dull film", "bad"), ("a warm song", "good")]
    listed = classifier(lm, demonstrations=shown, calibrator="bc").fit(texts)
    np.testing.assert_array_equal(of_file.predict_proba(texts), listed.predict_proba(texts))
    (tmp_path / "shown.csv").write_text("body\na dull film\n")
    with pytest.raises(TextsError, match="lack the column label"):
        classifier(lm, demonstrations=tmp_path / "shown.csv").fit(texts)


# ------------------------------------------------------------------ saved classifiers


@pytest.fixture
def saved(lm, texts: list[str], tmp_path: Path) -> Path:
    classifier(lm, calibrator="bc").fit(texts).save(tmp_path / "saved")
    return tmp_path / "saved"


def test_another_model_is_refused(saved: Path, lm, texts: list[str], tiny_gpt2: Path):
    from lm_eval.models.huggingface import HFLM

    with pytest.raises(TextsError, match="was a Python object; give it as model"):
        TextClassifier.load(saved)
    with pytest.raises(ModelError, match="another model than the classifier was fitted with"):
        TextClassifier.load(saved, model=HFLM(pretrained=str(tiny_gpt2), device="cpu")).predict(texts)
    assert len(TextClassifier.load(saved, model=lm).predict(texts)) == len(texts)
    with pytest.raises(TextsError, match="which could run code"):
        classifier(lm, template="{% for word in body.split() %}{{word}} {% endfor %}:").fit(texts).save(saved)
    with pytest.raises(TextsError, match="labels is part of a saved classifier"):
        TextClassifier.load(saved, model=lm, labels=["a", "b"])


def edited(**changes: Any) -> Any:
    def edit(folder: Path) -> None:
        document = json.loads((folder / CLASSIFIER).read_text())
        for key, value in changes.items():
            document[key] = {**document[key], **value} if isinstance(value, dict) else value
        (folder / CLASSIFIER).write_text(json.dumps(document))

    return edit


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (edited(format_version=2), "has format version 2, and this lm-eval-proca reads 1"),
        (edited(format="something"), "is no saved classifier"),
        (edited(params={"labels": ["good", "ugly"]}), "labels and prompts that are not those of its calibrator"),
        (edited(params={"template": ["{a}:", "{b}:"]}), "labels and prompts that are not those of its calibrator"),
        (edited(params={"unknown": 1}), "was changed"),
        (edited(blank_scores="x"), "was changed"),
        (edited(params={"template": ["{{body.__class__}}"]}), "which could run code"),
        (edited(params={"description": "{{ cycler.__init__ }}"}), "which could run code"),
        (edited(params={"model": "hf", "model_args": {"trust_remote_code": True}}), "runs code of its own"),
        (lambda folder: (folder / CLASSIFIER).write_text("{"), "is damaged"),
        (lambda folder: (folder / CLASSIFIER).unlink(), "holds no saved classifier"),
        (lambda folder: (folder / CALIBRATOR).write_text("{}"), "has another calibrator.json"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(damage: Any, sentence: str, saved: Path, lm):
    damage(saved)
    with pytest.raises(TextsError, match=sentence):
        TextClassifier.load(saved, model=lm)


def test_no_secret_is_saved(strong_model: Path, texts: list[str], tmp_path: Path):
    args = {"pretrained": str(strong_model), "token": "hf_verysecret"}
    made = TextClassifier(labels=LABELS, template=TEMPLATE, model_args=args, device="cpu", calibrator="bc").fit(texts)
    made.save(tmp_path)
    assert not any("verysecret" in file.read_text() for file in tmp_path.iterdir())
    assert TextClassifier.load(tmp_path, device="cpu").predict(texts).tolist() == made.predict(texts).tolist()
