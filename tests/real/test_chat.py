"""Chat templates, demonstrations as turns and a system instruction, with the template of a real instruct model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca import ScoreTable
from tests.real.conftest import results_in

pytestmark = [pytest.mark.real, pytest.mark.slow]

CHAT = ("--apply_chat_template", "--fewshot_as_multiturn", "True", "--system_instruction", "Answer in one word.")


@pytest.mark.parametrize("representation", ["layers", "probes"])
def test_scores_in_a_chat_are_those_of_stock(lm_eval_cli, tmp_path: Path, representation: str):
    found = {}
    for model in ("hf-shared-prefix", "hf") if representation == "layers" else ("hf-shared-prefix",):
        folder = tmp_path / model
        settings = f"proca.estimate_size=12,proca.representation={representation},proca.scores_dir={folder / 'scores'}"
        options = ("--tasks", "proca_sst2", "--limit", "12", "--num_fewshot", "2", "--batch_size", "4", "--log_samples")
        done = lm_eval_cli(*options, *CHAT, "--output_path", str(folder), "--metadata", settings, model=model)
        assert done.returncode == 0, done.stderr[-3000:]
        [table] = map(ScoreTable.load, (folder / "scores").iterdir())
        assert ("acc,proca_h" in results_in(folder)["results"]["proca_sst2"]) == (model != "hf")
        found[model] = table
    [sample, *_] = (tmp_path / "hf-shared-prefix").rglob("samples_*.jsonl")
    prompt = sample.read_text().partition("\n")[0]
    assert "Answer in one word." in prompt
    assert prompt.count("<|im_start|>assistant") >= 3, "two demonstrations and the turn of the answer"
    assert len(found["hf-shared-prefix"].representation.views) == (3 if representation == "layers" else 1)
    if "hf" in found:
        np.testing.assert_allclose(found["hf-shared-prefix"].scores, found["hf"].scores, atol=1e-3)
