"""Reading result folders: what counts, what is named and skipped, and which model a result belongs to."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from lm_eval_proca.compare.columns import measurements_of
from lm_eval_proca.compare.names import short_model_names
from lm_eval_proca.compare.results import read_results
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.sample_logs import UnclearTarget, read_correct
from lm_eval_proca.scores.identity import model_identity
from results.output_folders import Matrix, write_output

BOTH = {"none": 0.5, "proca": 0.75}


def test_reads_what_lm_eval_writes(lm_eval_folder):
    results = read_results([lm_eval_folder])
    assert not results.notices
    cells = {(run.model, run.task, run.shots, run.seed) for run in results.runs}
    assert cells == {
        (model, task, 2, seed)
        for model in ("org/small", "org/large")
        for task in ("proca_toy", "proca_other")
        for seed in (0, 1)
    }
    for run in results.runs:
        document = json.loads(run.file.read_text())
        assert run.accuracy == {
            name: document["results"][run.task][f"acc,{name}"] for name in ("none", "bc", "conca", "proca")
        }
        assert run.record.eval_rows == 40
        assert run.record.estimate_size == 60
        assert run.record.documents_hash
        logged = read_correct(*run.samples_files).by_filter
        assert {name: pytest.approx(correct.mean()) for name, correct in logged.items()} == run.accuracy


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"results": {',
        "[]",
        "{}",
        '{"results": {}, "configs": {}, "config": []}',
        "\ud800",
        "[" * 200_000,
        "1" * 9000,
    ],
    ids=["empty", "cut", "list", "no results", "config is a list", "not UTF-8", "nested", "number"],
)
def test_damaged_file_is_named_and_skipped(write_result, text):
    good = write_result(accuracy=BOTH)
    damaged = good.with_name("results_2026-01-01T00-00-01.json")
    damaged.write_bytes(text.encode("utf-8", "surrogatepass"))
    results = read_results([good.parent])
    assert len(results.runs) == 1
    (notice,) = results.notices
    assert notice.kind == "damaged"
    assert str(damaged) in notice.text


@pytest.mark.parametrize(
    "accuracy", [float("nan"), 1.5, -0.1, "0.5", None, True, 10**400], ids=lambda value: str(value)[:5]
)
def test_value_that_is_no_accuracy_is_damage(write_result, accuracy):
    good = write_result(accuracy=BOTH)
    write_result(seed=1, accuracy={"none": 0.5, "proca": accuracy})
    results = read_results([good.parent])
    assert [run.seed for run in results.runs] == [0]
    assert "acc,proca" in results.notices[0].text


def test_unfinished_work_and_other_files_are_not_results(write_result, tmp_path):
    kept = write_result(accuracy=BOTH)
    write_result(accuracy=BOTH, folder=tmp_path / "results" / ".unfinished-cell")
    (kept.parent / "notes.json").write_text("not ours")
    assert [run.file for run in read_results([tmp_path / "results"]).runs] == [kept]


def test_one_file_reached_twice_counts_once(write_result):
    file = write_result(accuracy=BOTH)
    assert len(read_results([file.parent, file, file.parent.parent]).runs) == 1


def test_output_path_that_is_a_file(write_result):
    # lm_eval --output_path out.json writes out_<date>.json
    file = write_result(correct={"none": [0, 1], "proca": [1, 1]})
    renamed = file.rename(file.with_name(file.name.replace("results_", "out_")))
    (run,) = read_results([renamed.parent]).runs
    assert [file.is_file() for file in run.samples_files] == [True]


def test_tasks_without_calibration_are_left_out_and_said(write_result):
    write_result(task="boolq", accuracy={"none": 0.6})
    write_result(task="boolq", seed=1, accuracy={"none": 0.6})
    folder = write_result(accuracy=BOTH).parent
    results = read_results([folder])
    assert [run.task for run in results.runs] == ["proca_sst2"]
    (notice,) = results.notices
    assert notice.kind == "left out"
    assert "boolq has no calibrated accuracy in 2 results" in notice.text
    assert not read_results([folder], ["proca_*"]).notices


def test_only_the_tasks_asked_for(write_result):
    write_result(task="proca_mr", accuracy=BOTH)
    folder = write_result(task="proca_sst2", accuracy=BOTH).parent
    assert [run.task for run in read_results([folder], ["proca_sst*"]).runs] == ["proca_sst2"]


@pytest.mark.parametrize("name", ["sst2", "sst*", "proca_sst2"])
def test_tasks_go_by_the_name_in_the_tables_too(write_result, name):
    write_result(task="proca_mr", accuracy=BOTH)
    folder = write_result(task="proca_sst2", accuracy=BOTH).parent
    assert [run.task for run in read_results([folder], [name]).runs] == ["proca_sst2"]


def test_task_that_is_not_there_is_said(write_result):
    write_result(task="proca_mr", accuracy=BOTH)
    folder = write_result(task="proca_sst2", accuracy=BOTH).parent
    with pytest.raises(ResultsError, match=r"^No task matches 'nope'; there are: mr, sst2\.$"):
        read_results([folder], ["nope"])
    results = read_results([folder], ["nope", "sst2"])
    assert [run.task for run in results.runs] == ["proca_sst2"]
    assert [notice.text for notice in results.notices] == ["No task matches 'nope'; there are: mr, sst2."]


def test_task_whose_only_file_is_damaged_is_not_just_unknown(write_result):
    good = write_result(task="proca_mr", accuracy=BOTH)
    damaged = good.with_name("results_2026-01-01T00-00-01.json")
    damaged.write_text("{")
    with pytest.raises(ResultsError, match=f"No task matches 'sst2'.*{damaged.name} was skipped"):
        read_results([good.parent], ["sst2"])


def test_file_without_a_date_in_its_name_is_not_looked_for(write_result, tmp_path):
    (tmp_path / "results_x.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"no results_DATE\.json with a date as in results_2026"):
        read_results([tmp_path])
    renamed = write_result(accuracy=BOTH).rename(tmp_path / "results_x.json")
    assert len(read_results([renamed]).runs) == 1


@pytest.mark.parametrize("content", [None, "empty", "damaged"])
def test_nothing_to_compare_is_one_sentence(tmp_path, content):
    folder = tmp_path / "runs"
    if content is not None:
        folder.mkdir()
    if content == "damaged":
        (folder / "results_2026-01-01T00-00-00.json").write_text("{")
    with pytest.raises(ResultsError, match="runs"):
        read_results([folder])


def names_of(files) -> list[str]:
    return [run.model for run in read_results(files).runs]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([{"dtype": "float16", "api_key": "SECRET"}], ["org/name"]),
        ([{}, {"dtype": "float16"}], ["org/name", "org/name (dtype=float16)"]),
        (
            [{"add_bos_token": True, "dtype": "float16"}, {"add_bos_token": False, "dtype": "float16"}],
            ["org/name (add_bos_token=True)", "org/name (add_bos_token=False)"],
        ),
        ([{"peft": "org/a"}, {"peft": "org/b"}], ["org/name (peft=org/a)", "org/name (peft=org/b)"]),
        ([{"load_in_8bit": True}, {"load_in_8bit": "true"}], ["org/name", "org/name"]),
        ([{"batch_size": 1}, {"batch_size": 8, "device": "cpu"}], ["org/name", "org/name"]),
        ([{"gguf_file": "a.gguf"}, {"gguf_file": "b.gguf"}], ["org/name/a.gguf", "org/name/b.gguf"]),
    ],
)
def test_a_model_is_named_by_what_tells_it_apart(write_result, arguments, names):
    files = [write_result(accuracy=BOTH, model_args={"pretrained": "org/name", **some}) for some in arguments]
    assert names_of(files) == names


def test_secrets_tell_models_apart_and_are_not_shown(write_result):
    urls = [f"https://me:SECRET{k}@host" for k in range(2)]
    files = [write_result(accuracy=BOTH, model_args={"model": "gpt-x", "base_url": url}) for url in urls]
    names = names_of(files)
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"gpt-x \(left-out=[0-9a-f]{6}\)", name) for name in names)


def test_a_cell_and_a_plain_run_of_one_model_are_one_row(write_result, tmp_path):
    """The results of a cell do not show its key; the identity beside them knows that there was one."""
    args = {"pretrained": "org/name", "token": "SECRET"}
    plain = write_result(accuracy=BOTH, model_args=args)
    cell = write_result(accuracy=BOTH, model_args={"pretrained": "org/name"}, folder=tmp_path / "cell")
    assert len(set(names_of([plain, cell]))) == 2
    model = model_identity(args, json.loads(plain.read_text())["config"]["model"])
    (cell.parent / "identity.json").write_text(json.dumps({"model": model}))
    assert names_of([plain, cell]) == ["org/name", "org/name"]
    (cell.parent / "identity.json").write_text("{}")
    (notice,) = read_results([plain, cell]).notices
    assert notice.kind == "damaged"


def change(file, **keys) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


def test_model_identity_from_older_string_arguments(write_result):
    old, new = (write_result(accuracy=BOTH, model_args={"pretrained": "org/name", "dtype": "x"}) for _ in range(2))
    config = json.loads(old.read_text())["config"]
    change(old, config={**config, "model_args": "pretrained=org/name,dtype=x"})
    assert names_of([old, new]) == ["org/name", "org/name"]


def test_keys_of_a_tasks_metadata_are_no_arguments(write_result):
    file = write_result(accuracy=BOTH, model_args={})
    document = json.loads(file.read_text())
    document["configs"]["proca_sst2"]["metadata"] |= {"path": "a remark", "dtype": "x"}
    config = {key: value for key, value in document["config"].items() if not key.startswith("model_")}
    change(file, configs=document["configs"], config={**config, "model": "SomeLM", "model_args": None})
    assert names_of([file]) == ["SomeLM"]


def test_backend_chat_template_and_system_prompt_make_another_model(write_result):
    files = [write_result(accuracy=BOTH) for _ in range(4)]
    change(files[1], chat_template_sha="abcdefgh")
    change(files[2], system_instruction_sha="12345678")
    change(files[3], config={**json.loads(files[3].read_text())["config"], "model": "vllm"})
    backend = json.loads(files[0].read_text())["config"]["model"]
    assert names_of(files) == [
        f"org/model ({backend})",
        f"org/model ({backend}, chat_template_sha=abcdef)",
        f"org/model ({backend}, system_instruction_sha=123456)",
        "org/model (vllm)",
    ]


def test_an_edited_template_stands_in_a_column_of_its_own(write_result):
    old, new = (write_result(accuracy=BOTH, seed=seed) for seed in (0, 1))
    configs = json.loads(new.read_text())["configs"]
    configs["proca_sst2"]["doc_to_text"] += " edited"
    change(new, configs=configs)
    measurements, (notice,) = measurements_of(read_results([old, new]).runs)
    assert len({one.dataset for one in measurements}) == 2
    assert notice.text.startswith("Results of proca_sst2 differ in template")


def test_a_filter_with_other_parameters_is_another_method(write_result):
    plain, other = (write_result(accuracy=BOTH, seed=seed) for seed in (0, 1))
    configs = json.loads(other.read_text())["configs"]
    configs["proca_sst2"]["filter_list"] = [
        {"name": "none", "filter": [{"function": "take_first"}]},
        {"name": "proca", "filter": [{"function": "proca", "n_init": 10}]},  # 5 in the other file
    ]
    change(other, configs=configs)
    measurements, notices = measurements_of(read_results([plain, other]).runs)
    assert {(one.run.seed, one.method) for one in measurements} == {
        (0, "raw"),
        (0, "proca (n_init=5)"),
        (1, "raw"),
        (1, "proca (n_init=10)"),
    }
    assert not notices


def test_model_names_lose_what_could_rewrite_a_terminal(write_result):
    (run,) = read_results([write_result(accuracy=BOTH, model="evil\x1b[2J\u202ename")]).runs
    assert run.model == "evil�[2J�name"


def test_local_paths_are_shortened_unless_ambiguous():
    names = ["/a/model", "/b/model", "/c/other.Q4.gguf (dtype=float32)", "org/name"]
    assert short_model_names(names) == {
        "/a/model": "/a/model",
        "/b/model": "/b/model",
        "/c/other.Q4.gguf (dtype=float32)": "other.Q4 (dtype=float32)",
        "org/name": "org/name",
    }


def test_samples_are_read_past_prompts_that_look_like_samples(write_result):
    file = write_result(correct={"none": [0, 1], "proca": [1, 1]})
    (samples,) = file.parent.glob("samples_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    for line in lines:
        line["doc"] = {"filter": "none", "text": '}, "filter": "none", "doc_hash": "x", "acc": 0.0}'}
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    correct = read_correct(samples).by_filter
    assert correct["none"].tolist() == [False, True]
    assert correct["proca"].tolist() == [True, True]


def test_samples_with_another_order_of_keys(write_result):
    file = write_result(correct={"none": [0, 1], "proca": [1, 1]})
    (samples,) = file.parent.glob("samples_*.jsonl")
    lines = [dict(reversed(json.loads(line).items())) for line in samples.read_text().splitlines()]
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_correct(samples).by_filter["none"].tolist() == [False, True]


def test_lines_without_accuracy_are_right_or_wrong_by_their_scores_and_gold_label(tmp_path):
    task = Matrix(np.array([[0.0, -1.0], [-1.0, 0.0], [0.0, -1.0]]), np.array([0, 0, -1]), ("no", "yes"))
    file = write_output(tmp_path, "m", {"plain": task})
    (samples,) = file.parent.glob("samples_*.jsonl")
    samples.write_text(re.sub(r', "acc": \d.0', "", samples.read_text()))
    assert read_correct(samples).by_filter["none"].tolist() == [True, False]  # the third has no gold label


def test_lines_whose_gold_label_is_unclear_have_no_answers(tmp_path):
    file = write_output(tmp_path, "m", {"plain": Matrix(np.eye(3), np.array([0, 1, 2]), ("2", "0", "1"))})
    (samples,) = file.parent.glob("samples_*.jsonl")
    lines = [re.sub(r', "acc": \d.0', "", line) for line in samples.read_text().splitlines(keepends=True)]
    samples.write_text("".join(lines).replace('"answer"', '"another"'))
    with pytest.raises(UnclearTarget):
        read_correct(samples)
