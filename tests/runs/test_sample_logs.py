"""Sample logs of lm-eval: real files, written by real runs of multiple-choice tasks without our class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.runs.sample_logs import UnclearTarget, read_samples
from lm_eval_proca.runs.score_files import read_run, read_scores
from tests.conftest import made_sentences, write_jsonl

PLAIN_TASK = """
task: plain
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {rows}}}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{sentence}}}} It was"
doc_to_target: {target}
doc_to_choice: {choices}
{more}
"""


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, dict]]:
    """Runs a plain task of lm-eval with random scores and gives its sample log and its results."""
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    def run(
        target: str = "label", choices: str = '["bad", "good"]', more: str = "", rows=None, code: str = ""
    ) -> tuple[Path, dict]:
        tmp_path = tmp_path_factory.mktemp("run")
        (tmp_path / "code.py").write_text(code)
        write_jsonl(tmp_path / "rows.jsonl", rows or made_sentences(40, seed=5))
        task = PLAIN_TASK.format(rows=tmp_path / "rows.jsonl", target=target, choices=choices, more=more)
        (tmp_path / "plain.yaml").write_text(task)
        tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
        results = lm_eval.simple_evaluate(
            model="dummy",
            tasks=["plain"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            log_samples=True,
            evaluation_tracker=tracker,
            bootstrap_iters=0,
        )
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        tracker.save_results_samples(task_name="plain", samples=samples["plain"])
        [path] = (tmp_path / "out").rglob("samples_plain_*.jsonl")
        return path, results["results"]["plain"]

    return run


@pytest.fixture(scope="module")
def log(logged: Callable) -> Path:
    return logged()[0]


@pytest.mark.parametrize(
    ("target", "choices"),
    [("label", '["bad", "good"]'), ("\"{{['bad', 'good'][label]}}\"", '["bad", "good"]'), ("label", '["1", "0"]')],
    ids=["index", "word", "digits as words"],
)
def test_raw_accuracy_is_that_of_the_run(logged: Callable, target: str, choices: str) -> None:
    path, results = logged(target, choices)
    table = read_samples(path)
    assert np.mean(table.scores_of("eval").argmax(axis=1) == table.gold_of("eval")) == results["acc,none"]
    assert table.labels == json.loads(choices)
    assert table.record.task == "plain"
    assert table.record.num_fewshot == 0
    np.testing.assert_array_equal(table.index_of("eval"), np.arange(40))
    assert not (table.role == "estimate").any()


NUMBERS = [{"sentence": f"number {k}", "rating": k % 3, "label": k % 2, "good": k % 2 == 1} for k in range(45)]
THIRD = [row["rating"] for row in NUMBERS]
SECOND = [row["label"] for row in NUMBERS]
DIGITS = '["1", "2", "0"]'
WORDS = [{**row, "digit": "120"[row["rating"]], "truth": str(not row["good"])} for row in NUMBERS]
"""`digit` and `truth` name the label of the index `rating` or `label` by its word."""


@pytest.mark.parametrize(
    ("target", "choices", "expected"),
    [
        ("rating", DIGITS, THIRD),
        ('"{{rating}}"', DIGITS, THIRD),
        ("digit", DIGITS, THIRD),
        ("!function code.number", DIGITS, THIRD),
        ("!function code.word", DIGITS, THIRD),
        ("good", '["bad", "good"]', SECOND),
        ("good", '["True", "False"]', SECOND),
        ("truth", '["True", "False"]', SECOND),
        ('"{{truth}}"', '["True", "False"]', SECOND),
        ("!function code.boolean", '["True", "False"]', SECOND),
        ("!function code.truth", '["True", "False"]', SECOND),
    ],
)
@pytest.mark.parametrize("metric", ["acc", "acc_norm", "mcc"])
def test_the_gold_label_is_the_one_that_lm_eval_counts(
    logged: Callable, target: str, choices: str, expected: list[int], metric: str
) -> None:
    """Positions, booleans and label words that look like either."""
    code = "\n".join(
        f"def {name}(doc):\n    return doc[{column!r}]"
        for name, column in {"number": "rating", "word": "digit", "boolean": "good", "truth": "truth"}.items()
    )
    path, _ = logged(target, choices, f"metric_list: [{{metric: {metric}}}]", WORDS, code)
    if metric == "acc_norm" and "function" in target:  # the log has only the text, and no metric that shows its meaning
        with pytest.raises(UnclearTarget, match=r"does not show whether targets such as .* are positions or label"):
            read_samples(path)
    else:
        assert read_samples(path).gold_of("eval").tolist() == expected


def test_a_target_is_understood_by_the_whole_log(logged: Callable, tmp_path: Path) -> None:
    path, _ = logged("digit", DIGITS, rows=WORDS)
    alone = tmp_path / path.name  # without the results file, which would tell
    alone.write_text(path.read_text())
    assert read_samples(alone).gold_of("eval").tolist() == THIRD

    def allows_both(line: str) -> bool:
        sample = json.loads(line)
        predicted = np.argmax([float(response[0][0]) for response in sample["resps"]])
        return predicted not in (THIRD[sample["doc_id"]], int(sample["target"]))

    alone.write_text("".join(filter(allows_both, path.read_text().splitlines(keepends=True))))
    with pytest.raises(UnclearTarget, match=r"are positions or label words; calibrate in the run instead"):
        read_samples(alone)


def test_documents_without_a_gold_label_are_unlabeled_rows(logged: Callable) -> None:
    rows = [{**row, "label": -1 if k % 3 else row["label"]} for k, row in enumerate(made_sentences(40, seed=5))]
    assert read_samples(logged(rows=rows)[0]).gold_of("eval").tolist() == [row["label"] for row in rows]
    rows = [{**row, "label": -1} for row in rows]
    assert set(read_samples(logged(rows=rows)[0]).gold) == {-1}
    named = [{**row, "label": ("unknown", "bad", "good")[k % 3]} for k, row in enumerate(rows)]
    assert read_samples(logged(rows=named)[0]).gold_of("eval").tolist() == [k % 3 - 1 for k in range(40)]


def test_scores_are_read_once_from_several_filters_and_without_the_unconditional_half(logged: Callable) -> None:
    more = "metric_list: [{metric: acc}, {metric: acc_mutual_info}]\nfilter_list:\n"
    more += "\n".join(f"  - {{name: {name}, filter: [{{function: take_first}}]}}" for name in ("first", "again"))
    path, results = logged(more=more)
    table = read_samples(path)
    assert table.scores.shape == (40, 2)
    assert np.mean(table.scores.argmax(axis=1) == table.gold) == results["acc,first"]
    first = json.loads(path.read_text().splitlines()[0])
    assert table.scores[0].tolist() == [float(first["resps"][k][0][0]) for k in range(2)]


def test_choices_that_differ_between_documents_are_positions(logged: Callable) -> None:
    rows = [{**row, "options": [f"a{i}", f"b{i}"]} for i, row in enumerate(made_sentences(20, seed=6))]
    table = read_samples(logged(choices='"{{options}}"', rows=rows)[0])
    assert table.record.labels_are_positions
    assert table.labels == ["choice 1", "choice 2"]


def test_a_varying_number_of_choices_is_refused(logged: Callable) -> None:
    rows = [{**row, "options": ["a", "b", "c"][: 2 + i % 2]} for i, row in enumerate(made_sentences(20, seed=6))]
    with pytest.raises(ScoreTableError, match=r"line 2 of .* has 3 choices, the rows before it 2"):
        read_samples(logged(choices='"{{options}}"', rows=rows)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "[0, 1]", "acc": 1.0}, "does not agree with its scores"),
        ({"acc": 7.0}, "does not agree with its scores"),
        ({"resps": [[["some generated text"]]]}, "no sample of a multiple-choice task"),
    ],
)
def test_damaged_or_foreign_rows_are_refused_with_their_line(
    log: Path, tmp_path: Path, change: dict, message: str
) -> None:
    lines = log.read_text().splitlines()
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([lines[0], json.dumps({**json.loads(lines[1]), **change})]))
    with pytest.raises(ScoreTableError, match=f"line 2 of .*{message}"):
        read_samples(changed)


def test_scores_that_are_not_finite_are_kept_and_refused_where_they_would_be_calibrated(
    log: Path, tmp_path: Path
) -> None:
    first, *_ = log.read_text().splitlines()
    changed = tmp_path / "changed.jsonl"
    resps = [[["nan", "False"]], [["-1", "False"]]]
    changed.write_text(json.dumps({**json.loads(first), "resps": resps}) + "\n\n")
    assert read_run(changed).not_finite() is not None
    with pytest.raises(ScoreTableError, match=r"changed.jsonl cannot be calibrated. The model gave nan as the score"):
        read_scores(changed)


def test_a_cut_file_is_refused(log: Path, tmp_path: Path) -> None:
    text = log.read_text()
    (tmp_path / "cut.jsonl").write_text(text[: len(text) // 2])
    with pytest.raises(ScoreTableError, match=r"line \d+ of .* is not JSON; the file is damaged or was cut"):
        read_samples(tmp_path / "cut.jsonl")
