"""A whole run from Python: lm-eval's own function with our settings, and what it leaves as data frames."""

from __future__ import annotations

import json
from pathlib import Path

import lm_eval
import pytest

from lm_eval_proca import BatchCalibrator, ScoreTable, results_frame
from lm_eval_proca.errors import TaskError


def test_simple_evaluate_with_our_settings(
    only_our_tasks: None, tiny_gpt2: Path, data_dir: Path, tmp_path: Path
) -> None:
    """The frames have lm-eval's numbers, and a calibrator fitted on the frame gives the row of the run."""
    settings = {
        "estimate_size": 60,
        "calibrators": "bc,proca_h",
        "data_dir": str(data_dir),
        "scores_dir": str(tmp_path),
    }
    results = lm_eval.simple_evaluate(
        model="hf-shared-prefix",
        model_args={"pretrained": str(tiny_gpt2)},
        device="cpu",
        tasks=["proca_sst2"],
        num_fewshot=2,
        bootstrap_iters=0,
        metadata={f"proca.{key}": value for key, value in settings.items()},
    )
    frame = results_frame(results)
    assert frame["filter"].tolist() == ["none", "bc", "proca_h"]
    assert set(frame["shots"]) == {2}
    accuracy = frame.set_index("filter")["value"]
    assert accuracy["bc"] == results["results"]["proca_sst2"]["acc,bc"]

    (file,) = tmp_path.glob("*.parquet")
    table = ScoreTable.load(file)
    scores = table.to_frame().set_index("role")
    fitted = BatchCalibrator().fit(scores.loc["estimate", table.labels])
    predicted = fitted.predict_labels(scores.loc["eval", table.labels])
    assert (predicted == scores.loc["eval", "gold"]).mean() == pytest.approx(accuracy["bc"])


def test_a_results_file_is_as_good(tmp_path: Path) -> None:
    metrics = {"acc,none": 0.5, "acc_stderr,none": "N/A", "alias": "t"}
    document = {"results": {"t": metrics}, "configs": {"t": {}}, "n-shot": {"t": 0}}
    (tmp_path / "results.json").write_text(json.dumps(document))
    (row,) = results_frame(tmp_path / "results.json").to_dict("records")
    assert (row["task"], row["shots"], row["filter"], row["metric"], row["value"]) == ("t", 0, "none", "acc", 0.5)
    assert row["stderr"] is None or row["stderr"] != row["stderr"]


@pytest.mark.parametrize("metadata", [{"proca.estimate_siz": 3}, {"proca": {"estimate_siz": 3}}])
def test_a_wrong_setting_is_told_before_the_model_is_loaded(metadata: dict) -> None:
    with pytest.raises(TaskError, match=r"unknown setting proca.estimate_siz\. Did you mean estimate_size\?"):
        lm_eval.simple_evaluate(
            model="hf", model_args="pretrained=/no/such/model", tasks=["proca_sst2"], metadata=metadata
        )
