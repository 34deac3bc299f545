"""SmolLM2 on real SST-2 rows, through the real command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.scores.score_table import ScoreTable
from tests.real.conftest import results_in

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_calibration_helps_by_fifteen_points(lm_eval_cli, tmp_path: Path):
    """One of the README's five seeds, on a part of its rows to stay quick."""
    done = lm_eval_cli(
        *["--tasks", "proca_sst2", "--num_fewshot", "4", "--seed", "0", "--limit", "200", "--batch_size", "16"],
        *["--metadata", "proca.estimate_size=200", "--output_path", str(tmp_path)],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("bc", "conca", "none", "proca"):
        assert f"|{name} " in done.stdout.replace(" |", "|").replace("| ", "|") or f"|{name}" in done.stdout
    accuracy = results_in(tmp_path)["results"]["proca_sst2"]
    assert accuracy["acc,proca"] >= accuracy["acc,none"] + 0.15
    assert accuracy["acc,proca"] >= 0.75
    assert "872" not in done.stdout
    assert "about to score 200 eval + 200 estimate + 3 content-free documents x 2 labels = 806 requests" in done.stderr


def test_raw_scores_are_those_of_the_stock_task(smollm2: Path, real_data: Path, tmp_path: Path):
    """At batch size 1 and equal threads: the same bits as the same YAML without our class, same demonstrations."""
    import lm_eval
    import torch
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    from tests.conftest import ROOT

    torch.set_num_threads(1)
    lm = HFLM(pretrained=str(smollm2), device="cpu", dtype="float32", batch_size=1)
    metadata = {"proca": {"data_dir": str(real_data), "estimate_size": 4, "scores_dir": str(tmp_path)}}
    manager = TaskManager(include_path=ROOT / "task_configs", include_defaults=False, metadata=metadata)
    chosen = {"proca_sst2": [0, 5, 17, 400, 871]}
    ours = lm_eval.simple_evaluate(
        model=lm, tasks=["proca_sst2"], task_manager=manager, num_fewshot=4, samples=chosen, bootstrap_iters=0
    )
    record = ours["configs"]["proca_sst2"]["metadata"]["proca"]
    rows = (real_data / "sst2" / "train.jsonl").read_text().splitlines()
    config = load_yaml(ROOT / "task_configs" / "proca_sst2.yaml")
    for key in ("class", "calibration", "dataset_name", "training_split", "fewshot_split"):
        config.pop(key, None)
    config["dataset_path"] = str(real_data / "sst2")
    config["fewshot_config"] = {
        "sampler": "first_n",
        "samples": [json.loads(rows[i]) for i in record["demonstrations"]],
    }
    stock = lm_eval.simple_evaluate(
        model=lm, tasks=[ConfigurableTask(config=config)], num_fewshot=4, samples=chosen, bootstrap_iters=0
    )
    raw = [sample for sample in ours["samples"]["proca_sst2"] if sample["filter"] == "none"]
    expected = stock["samples"]["proca_sst2"]
    assert [sample["arguments"] for sample in raw] == [sample["arguments"] for sample in expected]
    scored, stock_scored = (np.array([[resp[0] for resp in one["resps"]] for one in some]) for some in (raw, expected))
    np.testing.assert_allclose(scored[..., 0], stock_scored[..., 0], atol=1e-4)
    np.testing.assert_array_equal(scored[..., 1], stock_scored[..., 1])  # is_greedy
    (file,) = tmp_path.glob("*.parquet")
    scores = [[resp[0][0] for resp in sample["resps"]] for sample in raw]
    assert np.array_equal(ScoreTable.load(file).scores_of("eval"), np.array(scores))
