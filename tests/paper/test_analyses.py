from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, log_softmax

from lm_eval_proca import BatchCalibrator, ContextualCalibrator, PrototypicalCalibrator
from lm_eval_proca.metrics import mean_by
from lm_eval_proca.paper import boundaries, formats, imbalance, observations, selection, size, templates, thresholds
from lm_eval_proca.paper import proportions as label_proportions
from lm_eval_proca.paper.observations import only, usable
from lm_eval_proca.scores.fitting import accuracies, accuracy_of, fit, make_calibrators
from tests.score_tables import made_table


class Witness(BatchCalibrator):
    """Batch calibration that remembers which rows it was fitted on."""

    seen: list[np.ndarray]

    def fit(self, X: np.ndarray, *args: object, **known: object) -> Witness:
        type(self).seen.append(np.asarray(X))
        return super().fit(X, *args, **known)


@pytest.fixture(autouse=True)
def fresh_witness() -> None:
    Witness.seen = []


@pytest.fixture(scope="module")
def calibrators() -> dict:
    return make_calibrators(["conca", "bc", "proca"], {"proca": {"n_init": 3}})


# ------------------------------------------------------------------ Figures 2 and 3


def test_boundaries_of_shifts_are_where_algebra_says() -> None:
    table = made_table(bias=3.0)
    line = np.array([-20.0, 20.0])
    mean = log_softmax(table.scores_of("estimate"), axis=1).mean(axis=0)
    [found] = boundaries.decision_boundaries(fit(BatchCalibrator(), table).calibrator, line)
    assert found == pytest.approx(expit(mean[1] - mean[0]), abs=1e-7)
    content_free = np.exp(table.scores_of("content_free")).mean(axis=0)
    [found] = boundaries.decision_boundaries(fit(ContextualCalibrator(), table).calibrator, line)
    assert found == pytest.approx(content_free[1] / content_free.sum(), abs=1e-7)


def test_proca_boundaries_part_the_line_as_its_predictions_do(calibrators: dict) -> None:
    table = made_table(bias=3.0, separation=1.5)
    fitted = fit(calibrators["proca"], table).calibrator
    line = np.linspace(-12.0, 12.0, 997)
    found = boundaries.decision_boundaries(fitted, line)
    assert found
    predicted = fitted.predict(np.column_stack([np.zeros_like(line), line]))
    crossed = np.searchsorted(np.sort(found), expit(line))
    np.testing.assert_array_equal(predicted, (predicted[0] + crossed) % 2)


def test_compared_boundaries_carry_the_accuracies_of_the_methods(calibrators: dict) -> None:
    tables = [made_table(seed=seed) for seed in (0, 1)]
    rows = boundaries.Boundaries.observe(tables, calibrators)
    for table, seed in zip(tables, (0, 1), strict=True):
        of_prompt = {row["calibrator"]: row["accuracy"] for row in rows if row["seed"] == seed}
        assert of_prompt == accuracies(table, calibrators)
    assert all(row["boundaries"] == [0.5] for row in rows if row["calibrator"] == "none")


def test_what_reads_hidden_states_has_an_accuracy_and_no_boundary() -> None:
    table, calibrators = made_table(hidden=True), make_calibrators(["bc", "proca_h"])
    found = {row["calibrator"]: row for row in boundaries.Boundaries.observe([table], calibrators)}
    assert found["bc"]["boundaries"] != found["proca_h"]["boundaries"] == []
    assert found["proca_h"]["accuracy"] == accuracies(table, calibrators)["proca_h"]


def test_clouds_hold_every_evaluation_row() -> None:
    table = made_table()
    cloud = boundaries.Boundaries.observe_documents([table])
    probabilities = np.exp(log_softmax(table.scores_of("eval"), axis=1))[:, 1]
    np.testing.assert_allclose([row["p_positive"] for row in cloud], probabilities)
    assert [row["word"] for row in cloud] == [table.labels[gold] for gold in table.gold_of("eval")]


def test_accuracy_over_thresholds_is_counted_row_by_row(calibrators: dict) -> None:
    table = made_table(eval_rows=50)
    probabilities = np.exp(log_softmax(table.scores_of("eval"), axis=1))[:, 1]
    rows = thresholds.Thresholds.observe([table], calibrators)
    for row in rows:
        right = sum(
            (p > row["threshold"]) == (g == 1) for p, g in zip(probabilities, table.gold_of("eval"), strict=True)
        )
        assert row["accuracy"] == right / 50
    assert rows[20]["accuracy"] == rows[20]["conventional_accuracy"] == accuracy_of(table)


def test_default_thresholds_have_the_conventional_one_in_the_middle(calibrators: dict) -> None:
    found = [row["threshold"] for row in thresholds.Thresholds.observe([made_table()], calibrators)]
    assert len(found) == 41
    assert found[20] == pytest.approx(0.5)
    assert found == sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_threshold_is_that_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probability = rng.integers(1, 9, size=30) / 10  # with ties
    positive = rng.random(30) < probability
    threshold, best = thresholds.best_possible_threshold(probability, positive)
    every = [np.mean((probability > t) == positive) for t in [0.0, *(np.arange(1, 100) / 100 + 0.005), 1.0]]
    assert best == pytest.approx(max(every))
    assert np.mean((probability > threshold) == positive) == pytest.approx(best)


# ------------------------------------------------------------------ Figures 5 and 7


def test_imbalanced_sets_have_the_proportion_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imbalance, "LARGEST_SET", 50)
    monkeypatch.setattr(imbalance, "DRAWS", 2)
    table = made_table()
    label_of = {
        row.tobytes(): gold for row, gold in zip(table.scores_of("estimate"), table.gold_of("estimate"), strict=True)
    }
    rows = imbalance.Imbalance.observe([table], {"bc": Witness()})
    assert len(Witness.seen) == 9 * 2
    for level, part in zip(np.repeat(imbalance.LEVELS, 2), Witness.seen, strict=True):
        labels = [label_of[row.tobytes()] for row in part]
        assert (len(labels), sum(labels)) == (50, round(50 * level))
        assert len({row.tobytes() for row in part}) == 50
    calibrated = [row for row in rows if row["calibrator"] == "bc"]
    gold = table.gold_of("eval")
    expected = [np.mean(BatchCalibrator().fit(part).predict(table.scores_of("eval")) == gold) for part in Witness.seen]
    assert [row["accuracy"] for row in calibrated] == expected


def test_imbalance_takes_the_largest_set_that_every_level_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imbalance, "DRAWS", 1)
    table = made_table(estimate_rows=60)
    negative, positive = np.bincount(table.gold_of("estimate"))
    rows = imbalance.Imbalance.observe([table], {"bc": Witness()})
    total = rows[0]["estimate_size"]
    assert round(0.9 * total) <= min(negative, positive)
    assert round(0.9 * (total + 1)) > min(negative, positive)


def test_proca_bears_imbalance_that_batch_calibration_does_not(
    calibrators: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imbalance, "LEVELS", (0.1, 0.5, 0.9))
    monkeypatch.setattr(imbalance, "DRAWS", 2)
    table = made_table(separation=3.0, estimate_rows=500)
    rows = imbalance.Imbalance.observe([table], calibrators)
    mean = {(row["positives"], row["calibrator"]): row["accuracy"] for row in mean_by(rows, "positives", "calibrator")}
    assert mean[0.5, "proca"] - mean[0.1, "proca"] < 0.02
    assert mean[0.1, "proca"] > mean[0.1, "bc"]


def test_sizes_are_random_parts_of_the_pool_without_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "default_sizes", lambda labels, pool: [10, 40])
    monkeypatch.setattr(size, "DRAWS", 3)
    table = made_table()
    pool = {row.tobytes() for row in table.scores_of("estimate")}
    size.Size.observe([table], {"bc": Witness()})
    assert [len(part) for part in Witness.seen] == [10] * 3 + [40] * 3
    for part in Witness.seen:
        rows = {row.tobytes() for row in part}
        assert len(rows) == len(part)
        assert rows <= pool
    assert len({part.tobytes() for part in Witness.seen}) == 6


def test_the_whole_pool_gives_the_accuracies_of_the_run(calibrators: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "DRAWS", 2)
    table = made_table(labels=3)
    rows = size.Size.observe([table], calibrators)
    for draw in (0, 1):
        whole = [row for row in rows if (row["estimate_size"], row["draw"]) == (300, draw)]
        found = {row["calibrator"]: row["accuracy"] for row in whole}
        assert found == accuracies(table, calibrators)


@pytest.mark.parametrize(("labels", "pool"), [(2, 500), (14, 3000), (4, 20), (6, 10)])
def test_default_sizes_reach_from_four_per_label_to_the_pool(labels: int, pool: int) -> None:
    sizes = size.default_sizes(labels, pool)
    assert sizes[0] == min(4 * labels, pool)
    assert sizes[-1] == pool
    assert len(sizes) == len(set(sizes)) <= 10
    if pool >= 500:
        assert len(sizes) == 10


# ------------------------------------------------------------------ Table 3 and Figure 8


def test_ablations_change_one_parameter_and_nothing_else() -> None:
    tables = [made_table("proca_agnews", labels=4, seed=seed) for seed in (0, 1)]
    calibrators = {"proca": PrototypicalCalibrator(n_init=3, random_state=5)}
    for rows, parameter, values in (
        (selection.Selection.observe(tables, calibrators), "selection", ("likelihood", "assignment")),
        (formats.Formats.observe(tables, calibrators), "features", ("log_likelihood", "prob", "log_prob")),
    ):
        expected = [
            np.mean(
                PrototypicalCalibrator(n_init=3, random_state=5, **{parameter: value})
                .fit(table.scores_of("estimate"))
                .predict(table.scores_of("eval"))
                == table.gold_of("eval")
            )
            for table in tables
            for value in values
        ]
        assert [row[parameter] for row in rows] == [*values, *values]
        assert [row["accuracy"] for row in rows] == expected
    assert calibrators["proca"].get_params() == PrototypicalCalibrator(n_init=3, random_state=5).get_params()


# ------------------------------------------------------------------ Figures 4 and 6


def test_templates_and_proportions_hold_every_method_of_every_prompt(calibrators: dict) -> None:
    tables = [
        made_table(shots=8, seed=seed, demonstration_counts=counts, order_seed=seed)
        for seed, counts in enumerate(([5, 3], [0, 8]))
    ]
    of_task = templates.Templates.observe(tables, calibrators)
    rows = label_proportions.Proportions.observe(tables, calibrators)
    assert [(row["positives"], row["order"]) for row in rows[::4]] == [(3, 0), (8, 1)]
    for seed, table in enumerate(tables):
        expected = accuracies(table, calibrators)
        assert {row["calibrator"]: row["accuracy"] for row in rows if row["seed"] == seed} == expected
        assert {row["calibrator"]: row["accuracy"] for row in of_task if row["seed"] == seed} == expected


# ------------------------------------------------------------------ what the tables must have


def test_tables_that_an_analysis_cannot_use_are_left_out_with_the_reason() -> None:
    good, many = made_table(), made_table("proca_agnews", labels=4)
    unlabeled = replace(made_table("proca_mr"), estimate_gold=np.full(503, -1))
    no_estimate_set = made_table("proca_rte", estimate_rows=0)
    one_sided = replace(made_table("proca_ap"), estimate_gold=np.where(made_table().role == "estimate", 0, -1))
    broken = made_table("proca_subj", seed=3)
    broken.scores[7, 0] = np.nan
    tables = [good, many, many, unlabeled, no_estimate_set, one_sided, broken]
    not_a_number = (
        "proca_subj (4 shots, seed 3: The model gave nan as the score of label 'Negative' for eval document 7)"
    )
    four = "proca_agnews (4 labels, not two)"
    assert usable(tables, [observations.two_labels]) == (
        [good, unlabeled, no_estimate_set, one_sided],
        [four, not_a_number],
    )
    assert usable(tables, imbalance.Imbalance.requirements) == (
        [good],
        [
            four,
            "proca_mr (estimate rows without labels)",
            "proca_rte (no estimate set)",
            "proca_ap (300 negative and 0 positive estimate rows)",
            not_a_number,
        ],
    )
    assert usable([good], [label_proportions.chosen_demonstrations]) == (
        [],
        ["proca_sst2 (not run with the settings demonstration_counts and order_seed)"],
    )


def test_columns_are_chosen_and_each_line_stands_once() -> None:
    rows = [{"task": task, "seed": seed} for task in "ab" for seed in (0, 1)]
    assert only(rows, "task") == [{"task": "a"}, {"task": "b"}]


def test_rows_without_gold_are_in_no_measure(calibrators: dict) -> None:
    table = made_table(eval_rows=60)
    gold = np.where((table.role == "eval") & (table.index < 20), -1, table.gold)
    partly = replace(table, gold=gold)
    kept = table.gold_of("eval")[20:]
    probability = expit(boundaries.positive_log_odds(table))[20:]
    assert [one["label"] for one in boundaries.Boundaries.observe_documents([partly])] == kept.tolist()
    for row in thresholds.Thresholds.observe([partly], calibrators):
        assert row["accuracy"] == pytest.approx(np.mean((probability > row["threshold"]) == (kept == 1)))
        assert row["eval_rows"] == 40
    none = replace(table, gold=np.full_like(table.gold, -1))
    assert usable([none], []) == ([], ["proca_sst2 (no gold labels)"])
