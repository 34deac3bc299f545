"""Several prompts in one run, against runs with one prompt each and arithmetic by hand."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table
from scipy.special import log_softmax

from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.prompts import stratified_orders
from lm_eval_proca.scores.score_table import ScoreTable
from tests.conftest import ROOT
from tests.harness.test_task import record_of, samples_of

FURTHER = ("acc_prompts", "acc_sd", "acc_worst", "acc_together")


@pytest.fixture(scope="module")
def settings():
    return {"estimate_size": 60, "estimate_seed": 7}


def tables_in(folder: Path) -> list[ScoreTable]:
    return sorted((ScoreTable.load(file) for file in folder.iterdir()), key=lambda table: table.record.prompt)


@pytest.fixture
def three(evaluate, settings, tmp_path: Path) -> tuple[dict, list[ScoreTable]]:
    results = evaluate(
        "proca_sst2",
        settings={**settings, "prompts": 3, "scores_dir": str(tmp_path)},
        num_fewshot=2,
        fewshot_random_seed=5,
        bootstrap_iters=100,
    )
    return results, tables_in(tmp_path)


class TestRows:
    def test_each_prompt_is_that_of_a_run_with_its_seed(self, evaluate, settings, three, tmp_path: Path):
        """Seeds 5, 1005 and 2005: the same raw scores of the evaluated documents, one run after the other."""
        results, tables = three
        values = results["results"]["proca_sst2"]
        alone = []
        for k, table in enumerate(tables):
            folder = tmp_path / str(k)
            one = evaluate(
                "proca_sst2",
                settings={**settings, "scores_dir": str(folder)},
                num_fewshot=2,
                fewshot_random_seed=5 + 1000 * k,
            )
            (single,) = tables_in(folder)
            assert np.abs(table.scores_of("eval") - single.scores_of("eval")).max() < 1e-4
            assert table.record.prompt_hash == single.record.prompt_hash
            assert table.record.demonstrations == single.record.demonstrations
            alone.append(one["results"]["proca_sst2"]["acc,none"])
        assert values["acc,none"] == alone[0]
        assert values["acc_prompts,none"] == pytest.approx(np.mean(alone))
        assert values["acc_sd,none"] == pytest.approx(np.std(alone, ddof=1))
        assert values["acc_worst,none"] == min(alone)

    def test_batch_calibration_and_averages_by_hand(self, three):
        results, tables = three
        values, gold = results["results"]["proca_sst2"], tables[0].gold_of("eval")
        assert len({table.record.unlabeled_hash for table in tables}) == 1
        raw = [log_softmax(table.scores_of("eval"), axis=1) for table in tables]
        shifts = [log_softmax(table.scores_of("estimate"), axis=1).mean(axis=0) for table in tables]
        for name, found in {"none": raw, "bc": [one - shift for one, shift in zip(raw, shifts, strict=True)]}.items():
            right = np.stack([one.argmax(axis=1) == gold for one in found])
            assert values[f"acc,{name}"] == pytest.approx(right[0].mean())
            assert values[f"acc_prompts,{name}"] == pytest.approx(right.mean())
            assert values[f"acc_worst,{name}"] == pytest.approx(right.mean(axis=1).min())
            # Mean squares of a table of two crossed factors; what prompts add is never counted below zero.
            means, m = (right.mean(axis=1), right.mean(axis=0)), right.mean()
            residual = right - means[0][:, None] - means[1] + m
            rest = (residual**2).sum() / (2 * (len(gold) - 1)) / right.size
            prompts, documents = means[0].var(ddof=1) / 3, means[1].var(ddof=1) / len(gold)
            variance = rest + max(0, prompts - rest) + max(0, documents - rest)
            assert values[f"acc_prompts_stderr,{name}"] == pytest.approx(np.sqrt(variance))
            together = np.mean([log_softmax(one, axis=1) for one in found], axis=0).argmax(axis=1) == gold
            assert values[f"acc_together,{name}"] == pytest.approx(together.mean())
            error = together.std(ddof=1) / np.sqrt(len(gold))
            assert values[f"acc_together_stderr,{name}"] == pytest.approx(error)

    def test_lm_evals_table_and_sample_logs_carry_the_rows(self, three):
        results, _ = three
        logged = samples_of(results, "bc")
        right = np.array([logged[doc_id]["acc_prompts"] for doc_id in sorted(logged)])
        assert right.shape == (120, 3)
        assert right[:, 0].tolist() == [logged[doc_id]["acc"] for doc_id in sorted(logged)]
        assert right.mean() == pytest.approx(results["results"]["proca_sst2"]["acc_prompts,bc"])
        json.dumps(results["samples"])
        lines = [[cell.strip() for cell in line.split("|")] for line in make_table(results).splitlines()]
        shown = {(line[3], line[5]): line[7:10] for line in lines[2:]}
        assert {metric for _, metric in shown} == {"acc", *FURTHER}
        value, _, error = shown["bc", "acc_prompts"]
        assert float(value) == pytest.approx(right.mean(), abs=1e-4)
        assert 0 < float(error) < 0.2
        assert results["higher_is_better"]["proca_sst2"]["acc_sd"] is False
        record = record_of(results)
        assert record["prompts"] == 3
        assert record["vary"] == "demonstrations"
        assert record["together"]["bc"]["accuracy"] == pytest.approx(right.mean(axis=0).tolist())

    def test_one_prompt_has_no_further_rows(self, evaluate, settings):
        results = evaluate("proca_sst2", settings={**settings, "prompts": 1}, num_fewshot=2, limit=20)
        assert not any(key.startswith(FURTHER) for key in results["results"]["proca_sst2"])
        assert not any("acc_prompts" in sample for sample in results["samples"]["proca_sst2"])

    def test_a_group_averages_what_its_tasks_have(self, evaluate, settings, tmp_path: Path):
        for name in ("one", "two"):
            yaml = f"include: {ROOT / 'task_configs' / 'proca_sst2.yaml'}\ntask: {name}\n"
            (tmp_path / f"{name}.yaml").write_text(yaml)
        metrics = "aggregate_metric_list: [{metric: acc, weight_by_size: false}]"
        (tmp_path / "both.yaml").write_text(f"group: both\ntask: [one, two]\n{metrics}\n")
        results = evaluate(
            "both", include=tmp_path, settings={**settings, "prompts": 2}, num_fewshot=1, limit=20, bootstrap_iters=100
        )["results"]
        for metric in ("acc", "acc_prompts", "acc_together"):
            of_tasks = [results[task][f"{metric},bc"] for task in ("one", "two")]
            assert results["both"][f"{metric},bc"] == pytest.approx(np.mean(of_tasks))
        errors = [results[task]["acc_prompts_stderr,bc"] for task in ("one", "two")]
        assert results["both"]["acc_prompts_stderr,bc"] == pytest.approx(np.sqrt(np.square(errors).sum()) / 2)


class TestKinds:
    def test_no_row_is_demonstrated_and_also_scored(self, evaluate, tiny_lm):
        shown: list[str] = []
        stock = tiny_lm.loglikelihood

        def listen(requests, **kwargs):
            shown.extend(request.args[0] for request in requests)
            return stock(requests, **kwargs)

        tiny_lm.loglikelihood = listen
        try:
            evaluate("proca_sst2", settings={"estimate_size": 150, "prompts": 4}, num_fewshot=4)
        finally:
            del tiny_lm.loglikelihood
        contexts = list(dict.fromkeys(shown))
        assert len(contexts) == 4 * (120 + 150 + 3)
        heads, tails = zip(*(context.rsplit("\n\n", 1) for context in contexts), strict=True)
        assert len(set(heads)) == 4
        assert len(set(tails)) == 120 + 150 + 3, "all prompts ask for the same documents"
        demonstrated = {one.partition("\nSentiment:")[0] for head in heads for one in head.split("\n\n")}
        assert not demonstrated & {tail.partition("\nSentiment:")[0] for tail in tails}

    def test_orders_spend_no_further_row(self, evaluate, settings, tmp_path: Path):
        changed = {**settings, "prompts": 4, "vary": "orders", "scores_dir": str(tmp_path)}
        evaluate("proca_sst2", settings=changed, num_fewshot=3, limit=20)
        orders = [table.record.demonstrations for table in tables_in(tmp_path)]
        assert len(set(orders)) == 4
        assert len({tuple(sorted(order)) for order in orders}) == 1

    def test_orders_are_stratified_and_not_only_rotations(self):
        for size, count in ((4, 4), (5, 5), (8, 5)):
            orders = stratified_orders(size, count, seed=0)
            assert orders[0] == tuple(range(size))
            assert len(set(orders)) == count
            places = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in combinations(orders, 2)]
            assert np.mean(places) < 0.6, "random orders have one place in common on average"
        rotations = {tuple((place + k) % 5 for place in range(5)) for k in range(5)}
        assert not set(stratified_orders(5, 5, seed=0)) <= rotations
        assert len(set(stratified_orders(3, 6, seed=1))) == 6

    def test_templates_are_those_of_the_tasks_with_their_names(self, evaluate, settings, tmp_path: Path):
        several = {**settings, "prompts": 4, "vary": "templates", "scores_dir": str(tmp_path / "several")}
        results = evaluate("proca_sst2", settings=several, num_fewshot=2, fewshot_random_seed=3, limit=30)
        for k, table in enumerate(tables_in(tmp_path / "several")):
            folder, name = tmp_path / str(k), f"proca_sst2_template{k + 1}"
            alone = {**settings, "scores_dir": str(folder)}
            evaluate(name, settings=alone, num_fewshot=2, fewshot_random_seed=3, limit=30)
            (single,) = tables_in(folder)
            assert table.labels == single.labels
            assert np.abs(table.scores - single.scores).max() < 1e-4
        assert record_of(results)["labels"] == ["Negative", "Positive"]
        at_none = evaluate("proca_sst2", settings={**settings, "prompts": 2}, num_fewshot=0, limit=30)
        assert record_of(at_none)["vary"] == "templates"

    @pytest.mark.parametrize(
        ("task", "shots", "given", "sentence"),
        [
            ("own_sentiment", 0, {"prompts": 2}, "at 0 shots only templates differ, and the task has no further temp"),
            ("proca_sst2", 0, {"prompts": 2, "vary": "orders"}, "at 0 shots there are no orders to vary"),
            ("proca_sst2", 2, {"prompts": 3, "vary": "orders"}, "2 demonstrations have only 2 orders"),
            ("proca_sst2", 2, {"prompts": 10, "vary": "templates"}, "it has 9 templates"),
            ("proca_sst2", 2, {"prompts": 2, "vary": "words"}, "must be one of demonstrations, orders, templates"),
            ("proca_sst2", 2, {"prompts": 0}, "prompts must be a whole number of at least 1"),
            ("proca_sst2", 2, {"prompts": 2, "template": 3}, "proca.template names one template"),
            ("proca_sst2", 2, {"template": 12}, "there is no template 12; the task has 9"),
        ],
    )
    def test_bad_input(self, evaluate, settings, own_task, task, shots, given, sentence):
        include = own_task() if task == "own_sentiment" else None
        with pytest.raises(TaskError, match=sentence):
            evaluate(task, include=include, settings={**settings, **given}, num_fewshot=shots, limit=20)

    def test_two_equal_prompts_are_refused(self, evaluate, settings, own_task):
        samples = "fewshot_config:\n  samples: [{sentence: one film, label: 0}]"
        folder = own_task(more=samples, drop="fewshot_split")
        with pytest.raises(TaskError, match="prompts 0 and 1 of 2 are the same"):
            evaluate("own_sentiment", include=folder, settings={**settings, "prompts": 2}, num_fewshot=1, limit=20)

    @pytest.mark.parametrize(
        ("templates", "sentence"),
        [
            ("[{doc_to_txt: a}]", "a template has doc_to_text, doc_to_choice or both"),
            ("[{doc_to_choice: good}]", "a template has a text and a list of label words"),
            ("[{doc_to_choice: [a, b, c]}]", "template 2 has the label words a, b, c; it needs one for each of 2"),
            ("{doc_to_text: a}", "templates must be a list"),
        ],
    )
    def test_bad_templates(self, evaluate, settings, own_task, templates, sentence):
        folder = own_task(more=f"  templates: {templates}")
        with pytest.raises(TaskError, match=sentence):
            evaluate("own_sentiment", include=folder, settings={**settings, "prompts": 2}, num_fewshot=0, limit=20)


def test_the_plan_of_a_sweep_counts_every_prompt(data_dir: Path):
    from lm_eval_proca.sweep.grid import Grid, Prompts, estimate_cost, render_prompts

    given = (("data_dir", str(data_dir)), ("estimate_size", 60))
    costs = []
    for settings in (given, (*given, ("prompts", 3))):
        (cell,) = Grid(["proca_sst2"], shots=(2,), seeds=(0,), settings=settings).cells()
        prompts = render_prompts([cell])[cell]
        assert isinstance(prompts, Prompts)
        costs.append(estimate_cost(prompts, len))
    assert costs[1].documents == 3 * costs[0].documents
    assert costs[1].tokens_prefix_once == pytest.approx(3 * costs[0].tokens_prefix_once, abs=2)


def test_settings_reach_the_task_by_the_command_line(data_dir: Path):
    manager = TaskManager(
        include_path=ROOT / "task_configs",
        include_defaults=False,
        metadata={"proca.data_dir": str(data_dir), "proca.prompts": "5", "proca.vary": "orders"},
    )
    task = manager.load(["proca_sst2"])["tasks"]["proca_sst2"]
    assert (task.settings.prompts, task.settings.vary, len(task.settings.templates)) == (5, "orders", 8)
