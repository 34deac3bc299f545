"""Inputs of random words: what is drawn, who asks for them, and what the run says about them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from lm_eval.api.model import LM

from lm_eval_proca.calibration.registry import get_calibrator
from lm_eval_proca.harness.documents import DOMAIN_TEXTS, domain_docs
from lm_eval_proca.scores.record import fingerprint
from lm_eval_proca.scores.score_table import ScoreTable

ROWS = [
    {"premise": "rain falls on Rome", "hypothesis": "it is wet", "label": 0, "title": ""},
    {"premise": "Rome burns", "hypothesis": "there is fire in the town", "label": 1, "title": ""},
]
FIELDS = ("premise", "hypothesis", "title")


def drawn(seed: int = 0, rows=ROWS) -> list[dict]:
    return domain_docs({**ROWS[0], "index": 7}, rows, FIELDS, "label", seed)


def test_every_field_has_random_words_of_its_own_and_their_mean_length() -> None:
    docs = drawn()
    assert len(docs) == DOMAIN_TEXTS == 20
    for doc in docs:
        assert doc.keys() == {"premise", "hypothesis", "title", "index"}  # no label
        assert set(doc["premise"].split()) <= {"rain", "falls", "on", "Rome", "burns"}
        assert set(doc["hypothesis"].split()) <= {"it", "is", "wet", "there", "fire", "in", "the", "town"}
        assert [len(doc[name].split()) for name in FIELDS] == [3, 4, 0]  # means 3 and 4.5, which rounds to even
        assert doc["index"] == 7
    assert len({doc["premise"] for doc in docs}) > 10


def test_frequent_words_are_drawn_more_often() -> None:
    rows = [{"premise": "often often often rare", "hypothesis": "x", "title": ""}] * 50
    counts = Counter(word for seed in range(20) for doc in drawn(seed, rows) for word in doc["premise"].split())
    assert counts["often"] / counts.total() == pytest.approx(0.75, abs=0.03)


def test_the_seed_decides() -> None:
    assert drawn(3) == drawn(3) != drawn(4)


class Reader(LM):
    """Keeps the prompts that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[str] = []

    def loglikelihood(self, requests, **kwargs):
        self.prompts += [request.args[0] for request in requests]
        return [(-1.0 - crc32("".join(request.args).encode()) % 97 / 13, False) for request in requests]

    def loglikelihood_rolling(self, requests):
        raise AssertionError

    def generate_until(self, requests):
        raise AssertionError


SMALL = {"estimate_size": 60}
ASKED = {**SMALL, "calibrators": "conca/domain/bc/bc_prob/ucpa/proca"}


def record_of(results: dict) -> dict:
    return results["configs"]["proca_sst2"]["metadata"]["proca"]


def tables_of(folder: Path) -> list[ScoreTable]:
    return sorted(map(ScoreTable.load, folder.iterdir()), key=lambda table: table.record.prompt)


def test_the_rows_are_the_calibrators_on_the_score_table(evaluate, tmp_path: Path) -> None:
    results = evaluate("proca_sst2", settings={**ASKED, "scores_dir": str(tmp_path)}, num_fewshot=2)
    (table,) = tables_of(tmp_path)
    assert len(table.scores_of("domain")) == 20
    rows = {key[4:]: value for key, value in results["results"]["proca_sst2"].items() if key.startswith("acc,")}
    assert rows.keys() == {"none", "conca", "domain", "bc", "bc_prob", "ucpa", "proca"}
    gold = table.gold_of("eval")
    for name in ("domain", "bc_prob", "ucpa"):
        calibrator = get_calibrator(name)()
        calibrator.fit(table.scores_of(calibrator.fits_on))
        assert rows[name] == np.mean(calibrator.predict(table.scores_of("eval")) == gold), name


def test_nothing_else_changes_when_it_is_asked_for(evaluate, tmp_path: Path) -> None:
    without, beside = Reader(), Reader()
    for lm, settings, name in ((without, SMALL, "without"), (beside, ASKED, "beside")):
        evaluate("proca_sst2", settings={**settings, "scores_dir": str(tmp_path / name)}, lm=lm, num_fewshot=2)
    (plain,), (asked,) = tables_of(tmp_path / "without"), tables_of(tmp_path / "beside")
    assert set(plain.role) == {"eval", "estimate", "content_free"}
    assert beside.prompts[: len(without.prompts)] == without.prompts
    assert len(beside.prompts) == len(without.prompts) + 20 * 2
    for role in ("eval", "estimate", "content_free"):
        np.testing.assert_array_equal(plain.scores_of(role), asked.scores_of(role))
    for one in ("documents_hash", "prompt_hash", "unlabeled_hash"):
        assert getattr(plain.record, one) == getattr(asked.record, one)


def test_the_record_says_what_was_drawn(evaluate) -> None:
    lm = Reader()
    settings = {**SMALL, "calibrators": "domain/bc"}
    record = record_of(evaluate("proca_sst2", settings=settings, lm=lm, num_fewshot=0))
    texts = [prompt.removeprefix("Review: ").removesuffix("\nSentiment:") for prompt in lm.prompts[-40::2]]
    assert record["fits"]["domain"]["inputs_hash"] == fingerprint((text,) for text in texts)
    assert "inputs_hash" not in record["fits"]["bc"]

    def hash_of(seed: int, **more) -> str:
        run = evaluate(
            "proca_sst2", settings={**settings, **more}, lm=Reader(), num_fewshot=0, fewshot_random_seed=seed
        )
        return record_of(run)["fits"]["domain"]["inputs_hash"]

    assert hash_of(1) == hash_of(1) != hash_of(2)
    assert hash_of(1, estimate_seed=5) == hash_of(2, estimate_seed=5)


def test_alone_it_scores_no_unlabeled_row(evaluate, tmp_path: Path) -> None:
    settings = {**SMALL, "calibrators": "domain", "scores_dir": str(tmp_path)}
    evaluate("proca_sst2", settings=settings, lm=Reader(), num_fewshot=0)
    (table,) = tables_of(tmp_path)
    assert set(table.role) == {"eval", "domain"}


def test_several_prompts_show_the_same_random_words(evaluate, tmp_path: Path) -> None:
    lm = Reader()
    settings = {**ASKED, "prompts": 3, "scores_dir": str(tmp_path)}
    results = evaluate("proca_sst2", settings=settings, lm=lm, num_fewshot=2)
    tables = tables_of(tmp_path)
    assert [len(table.scores_of("domain")) for table in tables] == [20] * 3
    assert {"acc_prompts,domain", "acc_together,ucpa", "acc_together,bc_prob"} <= results["results"][
        "proca_sst2"
    ].keys()
    shown = [prompt.rpartition("Review: ")[2] for prompt in lm.prompts]
    texts = Counter(shown[-40:])  # those of the last prompt
    assert all(shown.count(text) == 3 * count for text, count in texts.items())


def test_every_process_plans_the_same(evaluate, data_dir: Path) -> None:
    """The further documents are dealt to the processes; each of them knows all."""
    from lm_eval.tasks import TaskManager

    from tests.conftest import ROOT

    metadata = {"proca.data_dir": str(data_dir), "proca.estimate_size": 60, "proca.calibrators": "domain/bc"}
    plans, shares = [], []
    for rank in range(2):
        manager = TaskManager(include_path=ROOT / "task_configs", include_defaults=False, metadata=metadata)
        task = manager.load(["proca_sst2"])["tasks"]["proca_sst2"]
        task.set_fewshot_seed(3)
        task.build_all_requests(rank=rank, world_size=2)
        plans.append(task.plan)
        shares.append({one.doc_id for one in task.instances} & task.plan.further.keys())
    assert plans[0].further == plans[1].further
    assert plans[0].drawn == plans[1].drawn
    assert shares[0] | shares[1] == plans[0].further.keys()
    assert not shares[0] & shares[1]
