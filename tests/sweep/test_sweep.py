from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.cli.sweep import add_arguments
from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep import task_files
from lm_eval_proca.sweep.cell import Model
from lm_eval_proca.sweep.grid import Grid, estimate_cost, render_prompts, token_counter
from lm_eval_proca.sweep.runner import Failure, load_task
from lm_eval_proca.sweep.task_files import TaskFile, find_single_task, find_task_files
from lm_eval_proca_discovery import task_configs_path
from tests.sweep.made_cells import made_cell

NINE = ["sst2", "sst5", "mr", "subj", "ap", "agnews", "dbpedia", "rte", "trec"]


def test_grid_is_every_combination():
    cells = Grid(["proca_mr", "proca_sst2"], [0, 4], [0, 1, 2], (("estimate_size", 9),)).cells(limit=50)
    assert len(set(cells)) == 12
    assert cells[0] == made_cell("proca_mr", 0, 0, 50, (("estimate_size", 9),))
    assert [cell.seed for cell in cells[:3]] == [0, 1, 2]
    assert len(Grid(["proca_mr"], [4, 4], [0, 0]).cells()) == 1


def test_defaults_are_the_papers_grid():
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--model_args", "pretrained=a", "--model_args", "pretrained=b", "--output_path", "x"])
    assert (tuple(args.num_fewshot), tuple(args.seeds)) == ((0, 1, 4, 8), (0, 1, 2, 3, 4))
    assert list(find_task_files(args.tasks)) == [f"proca_{name}" for name in NINE]
    assert len(args.model_args) == 2


def test_tasks_are_found_by_name_group_and_pattern(tmp_path: Path):
    assert list(find_task_files(["proca_mr", "proca_sst2"])) == ["proca_mr", "proca_sst2"]
    assert len(find_task_files(["proca_sst2_template?"])) == 9
    (tmp_path / "mine.yaml").write_text("task: mine\noutput_type: multiple_choice\n")
    assert find_single_task("mine", [str(tmp_path)]) == ("mine", TaskFile(tmp_path / "mine.yaml"))
    with pytest.raises(TaskError, match="proca stands for 9 tasks; name one of proca_sst2, "):
        find_single_task("proca")


def test_unknown_task_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    ours = task_files._index([task_configs_path()], include_defaults=False)
    monkeypatch.setattr(task_files, "_index", lambda folders, include_defaults: ours)  # not lm-eval's ten thousand
    with pytest.raises(TaskError, match="There is no task proca_sst3; ours are proca, proca_agnews, "):
        find_task_files(["proca_sst3"])


def test_estimate_agrees_with_the_requests_of_the_run(tiny_gpt2: Path, two_datasets: Path):
    settings = (("data_dir", two_datasets), ("estimate_size", 60))
    nowhere = (("estimate_split", "nowhere"), *settings)
    cells = [made_cell("proca_sst2", 4, 0, 40, settings), made_cell("proca_sst2", 4, 0, 40, nowhere)]
    prompts = render_prompts(cells)
    count, counted_with = token_counter(Model("hf", {"pretrained": str(tiny_gpt2)}))
    cost = estimate_cost(prompts[cells[0]], count)

    task = load_task(cells[0], {})
    task.set_config("num_fewshot", 4)
    task.set_fewshot_seed(0)
    task.build_all_requests(limit=40)
    contexts = {request.doc_id: request.args[0] for request in task.instances}
    tokens = [count(context) + 1 for context in contexts.values()]
    shared = count(os.path.commonprefix(list(contexts.values())))  # noqa: RUF071
    assert counted_with == "the model's own tokenizer"
    assert cost.documents == len(contexts) == 40 + 60 + 3
    assert cost.requests == len(task.instances)
    assert cost.tokens == pytest.approx(sum(tokens), rel=0.05)
    assert cost.tokens_prefix_once == pytest.approx(shared + sum(tokens) - shared * len(tokens), rel=0.25)

    broken = prompts[cells[1]]
    assert isinstance(broken, Failure)
    assert "no split 'nowhere'" in broken.sentence


def test_without_a_tokenizer_characters_are_counted():
    count, counted_with = token_counter(Model("local-completions", {"model": "no-such-model-anywhere"}))
    assert count("x" * 40) == 10
    assert counted_with.startswith("characters / 4")


# ------------------------------------------------------------------ the command, as a process that can be killed


@pytest.fixture(scope="module")
def options(tiny_gpt2: Path, two_datasets: Path) -> list[str]:
    """Two tasks, two shots, two seeds; few documents, because it is run many times."""
    return [
        *("sweep", "--model", "hf", "--model_args", f"pretrained={tiny_gpt2}", "--batch_size", "32"),
        *("--tasks", "proca_sst2,proca_mr", "--num_fewshot", "0", "2", "--seeds", "0", "1", "--limit", "20"),
        *("--metadata", f"proca.data_dir={two_datasets}", "proca.estimate_size=20"),
    ]


@pytest.fixture(scope="module")
def uninterrupted(options: list[str], start_command: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    sweep = start_command([*options, "--output_path", str(folder / "runs")], folder / "log")
    sweep.join()
    assert sweep.exitcode == 0, (folder / "log").read_text()
    return folder / "runs"


def cells_of(folder: Path) -> dict[str, Path]:
    return {path.parent.name: path for path in folder.glob("*/[!.]*/results_*.json")}


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_killed_three_times_and_resumed_gives_the_same_table(
    options: list[str], uninterrupted: Path, start_command: Callable, tmp_path: Path
):
    runs, log = tmp_path / "runs", tmp_path / "log"
    rnd = random.Random()
    kept: dict[str, Path] = {}
    for _ in range(3):
        sweep = start_command([*options, "--output_path", str(runs)], log)
        before = len(cells_of(runs))
        moment = rnd.choice(["early", "late"])
        wait_until(lambda: runs.exists() if moment == "early" else len(cells_of(runs)) > before)  # noqa: B023
        time.sleep(rnd.uniform(0.0, 0.2))  # less than two of the eight cells take
        assert sweep.exitcode is None, log.read_text()
        sweep.kill()
        sweep.join()
        kept |= cells_of(runs)
    sweep = start_command([*options, "--output_path", str(runs)], log)
    sweep.join()
    assert sweep.exitcode == 0, log.read_text()

    resumed, reference = cells_of(runs), cells_of(uninterrupted)
    assert len(reference) == 8
    assert resumed.keys() == reference.keys()
    assert {name: resumed[name] for name in kept} == kept, "a finished cell was run again"
    assert not list(runs.glob("*/.unfinished-*"))
    for name, file in reference.items():
        assert json.loads(resumed[name].read_text())["results"] == json.loads(file.read_text())["results"]
        table, other = (ScoreTable.load(next(f.parent.glob("scores/*.parquet"))) for f in (file, resumed[name]))
        assert table.record == other.record
        np.testing.assert_array_equal(table.index, other.index)
        np.testing.assert_allclose(table.scores, other.scores, atol=1e-5)


def test_finished_sweep_has_nothing_to_do(
    options: list[str], uninterrupted: Path, start_command: Callable, tmp_path: Path
):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")}
    sweep = start_command([*options, "--output_path", str(uninterrupted)], tmp_path / "log")
    sweep.join()
    assert sweep.exitcode == 0
    assert "8 finished, 0 to do" in (tmp_path / "log").read_text()
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")} == before


def test_dry_run_prints_the_plan_and_writes_nothing(options: list[str], start_command: Callable, tmp_path: Path):
    sweep = start_command([*options, "--output_path", str(tmp_path / "runs"), "--dry-run"], tmp_path / "log")
    sweep.join()
    text = (tmp_path / "log").read_text()
    assert sweep.exitcode == 0, text
    assert "= 8 cells" in text
    assert "0 finished, 8 to do" in text
    assert "the model's own tokenizer" in text
    assert not (tmp_path / "runs").exists()


def test_failing_task_does_not_stop_the_others(
    options: list[str], two_datasets: Path, start_command: Callable, tmp_path: Path
):
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "sst2").symlink_to(two_datasets / "sst2")
    (rows / "mr").mkdir()
    (rows / "mr" / "train.jsonl").symlink_to(two_datasets / "mr" / "train.jsonl")  # and no validation split
    few = [*options, "--seeds", "0", "--num_fewshot", "0", "--metadata", f"proca.data_dir={rows}"]
    sweep = start_command([*few, "--output_path", str(tmp_path / "runs")], tmp_path / "log")
    sweep.join()
    text = (tmp_path / "log").read_text()
    assert sweep.exitcode == 1, text
    assert [name.split("-")[0] for name in cells_of(tmp_path / "runs")] == ["proca_sst2"]
    end = text[text.index("1 of 2 cells are finished") :]
    assert "1 failed:" in end
    assert "the dataset has no split 'validation'" in end
    (log,) = (tmp_path / "runs").glob("*/*.failed.log")
    assert str(log) in end
    assert "Traceback" in log.read_text()


def test_dry_run_shows_who_runs_what(options: list[str], start_command: Callable, tmp_path: Path):
    command = [*options, "--output_path", str(tmp_path / "runs")]
    sweep = start_command(command, tmp_path / "log")
    wait_until(lambda: any((tmp_path / "runs").glob("*/.unfinished-*")))
    os.kill(sweep.pid, signal.SIGSTOP)
    shown = start_command([*command, "--dry-run"], tmp_path / "shown")
    shown.join()
    sweep.kill()
    sweep.join()
    who = rf"running: proca_\w+-\dshot-seed\d\S*: process {sweep.pid} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d$"
    assert len(re.findall(who, (tmp_path / "shown").read_text(), flags=re.MULTILINE)) == 1
    shown = start_command([*command, "--dry-run"], tmp_path / "later")
    shown.join()
    assert "running:" not in (tmp_path / "later").read_text(), "the dead run nothing"


# ------------------------------------------------------------------ runs that differ never share a cell

OWN_TASK = """
class: !function lm_eval_proca.CalibratedTask
task: own_sentiment
dataset_path: somebody/reviews
validation_split: validation
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{sentence.strip()}} All in all it was"
doc_to_target: label
doc_to_choice: ["bad", "good"]
filter_list:
  - {name: none, filter: [{function: take_first}]}
  - {name: bc, filter: [{function: bc}]}
calibration: {estimate_split: train, estimate_size: 20, text_fields: [sentence], data_folder: sst2}
metadata: {version: 1, remark: not an argument of a model}
"""


@pytest.fixture
def sweep(tiny_gpt2: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Sweeps one cell of the task above into `tmp_path / "runs"`; returns all that was printed."""
    from lm_eval_proca.cli import main

    (tmp_path / "own.yaml").write_text(OWN_TASK)

    def run(*metadata: str, model_args: str = "") -> str:
        command = ["sweep", "--model", "hf", "--model_args", f"pretrained={tiny_gpt2}{model_args}", "--device", "cpu"]
        command += ["--tasks", "own_sentiment", "--include_path", str(tmp_path), "--num_fewshot", "0", "--seeds", "0"]
        command += ["--limit", "10", "--batch_size", "16", "--output_path", str(tmp_path / "runs")]
        assert main([*command, "--metadata", f"proca.data_dir={data_dir}", *metadata]) == 0
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


def test_one_argument_more_is_another_model(sweep: Callable[..., str], tmp_path: Path):
    from lm_eval_proca.compare.comparison import compare

    for value in ("True", "False"):
        assert "0 finished, 1 to do" in sweep(model_args=f",add_bos_token={value}")
    assert len(list((tmp_path / "runs").iterdir())) == 2
    models = {standing.model for standing in compare([tmp_path / "runs"]).leaderboards[0].standings}
    assert {model.rpartition(" ")[2] for model in models} == {"(add_bos_token=True)", "(add_bos_token=False)"}
    assert "1 finished, 0 to do" in sweep(model_args=",add_bos_token=true")
    tables = [ScoreTable.load(file) for file in (tmp_path / "runs").rglob("*.parquet")]
    assert len({table.record.origin["model_args"]["add_bos_token"] for table in tables}) == 2
    assert all("remark" not in table.record.origin["model_args"] for table in tables)


def test_an_edited_task_makes_new_cells(sweep: Callable[..., str], tmp_path: Path):
    from lm_eval_proca.compare.comparison import compare

    sweep()
    file = tmp_path / "own.yaml"
    file.write_text(OWN_TASK.replace("All in all", "On the whole"))
    again = sweep()
    assert "0 finished, 1 to do" in again
    assert "own_sentiment-0shot-seed0-limit10: finished before with another task configuration (doc_to_text)" in again
    assert "1 finished, 0 to do" in sweep()
    assert len(cells_of(tmp_path / "runs")) == 2
    (notice,) = [notice.text for notice in compare([tmp_path / "runs"]).notices if notice.kind == "differing"]
    assert "Results of own_sentiment differ in template; they stand in separate columns" in notice

    file.write_text(OWN_TASK)
    assert "1 finished, 0 to do" in sweep(), "the first cell is still there"
    assert "1 finished, 0 to do" in sweep("proca.estimate_size=20"), "which says what the task says"


def test_an_edited_estimate_file_makes_new_cells(sweep: Callable[..., str], tmp_path: Path):
    file = tmp_path / "estimate.jsonl"
    for word in ("fine", "dull"):
        file.write_text("".join(json.dumps({"sentence": f"a {word} film, number {k}"}) + "\n" for k in range(20)))
        assert "0 finished, 1 to do" in sweep(f"proca.estimate_file={file}")
        assert "1 finished, 0 to do" in sweep(f"proca.estimate_file={file}")
    assert len(cells_of(tmp_path / "runs")) == 2
