"""What a group changes in its tasks: a sweep scores the prompts and label words of `lm_eval --tasks GROUP`."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from lm_eval_proca.cli import main
from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid
from lm_eval_proca.sweep.runner import load_task
from lm_eval_proca.sweep.task_files import find_single_task, find_task_configs, find_task_files
from tests.conftest import ROOT

GROUPS = {
    "plain": "task: [mine_a, mine_b]",
    "words": """
task:
  - task: mine_a
    doc_to_choice: [bad, good]
    task_alias: A
  - mine_b
""",
    "described": """
description: "Films. "
target_delimiter: " = "
task:
  - task: mine_a
    description: "Old films. "
  - mine_b
""",
    "nested": """
task:
  - words
  - group: inline
    doc_to_text: "{{sentence}} It is"
    task: [mine_c]
""",
    "around": """
description: "Around. "
task:
  - group: described
    doc_to_choice: [dull, fine]
  - mine_c
""",
    "tagged": """
task: [my_tag]
doc_to_choice: [down, up]
""",
    "functions": """
task: [mine_a]
doc_to_text: !function prompts.prompt
""",
}
PROMPTS = "def prompt(doc):\n    return f'<{doc[\"sentence\"]}> is'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three tasks, two of them with a tag, and groups that change them."""
    for name in ("mine_a", "mine_b", "mine_c"):
        tag = "" if name == "mine_c" else "tag: my_tag\n"
        text = f"include: {ROOT / 'task_configs' / 'proca_sst2.yaml'}\ntask: {name}\n{tag}"
        (tmp_path / f"{name}.yaml").write_text(text)
    for name, text in GROUPS.items():
        (tmp_path / f"{name}.yaml").write_text(f"group: {name}\n{text}\n")
    (tmp_path / "prompts.py").write_text(PROMPTS)
    return tmp_path


def of_lm_eval(group: str, folder: Path, data_dir: Path) -> dict:
    metadata = {"proca.data_dir": str(data_dir), "proca.estimate_size": 20}
    return TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata).load([group])["tasks"]


@pytest.mark.parametrize("group", GROUPS)
def test_prompts_and_label_words_are_those_of_lm_eval(group: str, folder: Path, data_dir: Path) -> None:
    settings = (("data_dir", str(data_dir)), ("estimate_size", 20))
    cells = Grid([group], [2], [0], settings).cells([str(folder)])
    theirs = of_lm_eval(group, folder, data_dir)
    assert [cell.task for cell in cells] == list(theirs)
    for cell in cells:
        ours, stock = load_task(cell, {}), theirs[cell.task]
        for task in (ours, stock):
            task.set_fewshot_seed(0)
        document = stock.eval_docs[3]
        assert ours.labels == stock.labels
        assert ours.fewshot_context(document, 2) == stock.fewshot_context(document, 2)
        assert ours.config.target_delimiter == stock.config.target_delimiter
        assert ours.config.task_alias == stock.config.task_alias


def test_what_a_group_changes_is_part_of_the_identity(folder: Path, tiny_gpt2: Path, data_dir: Path) -> None:
    from lm_eval_proca.scores.identity import differences
    from lm_eval_proca.sweep.cell import Model

    model = Model("hf", {"pretrained": str(tiny_gpt2)})

    def identity(name: str) -> dict:
        return Grid([name], [0], [0]).cells([str(folder)])[0].identity(model)

    alone = identity("mine_a")
    assert alone == identity("plain")
    assert differences(alone, identity("words")) == "task configuration (doc_to_choice, task_alias)"
    by_function = identity("functions")
    assert differences(alone, by_function) == "task configuration (doc_to_text)"
    (folder / "prompts.py").write_text(PROMPTS.replace("is'", "was'"))
    assert differences(by_function, identity("functions")) == "task configuration (doc_to_text)"
    assert find_task_configs("words", [str(folder)])["mine_a"]["doc_to_choice"] == ["bad", "good"]


def test_a_sweep_of_a_group_keeps_its_own_cells(
    folder: Path, data_dir: Path, tiny_gpt2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "--model", "hf", "--model_args", f"pretrained={tiny_gpt2}", "--device", "cpu", "--limit", "10"]
    command += ["--include_path", str(folder), "--num_fewshot", "0", "--seeds", "0", "--batch_size", "16"]
    command += ["--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=20"]
    command += ["--output_path", str(folder / "runs"), "--tasks"]
    assert main([*command, "mine_a"]) == 0
    capsys.readouterr()
    assert main([*command, "words"]) == 0
    assert "0 finished, 2 to do" in capsys.readouterr().out
    assert main([*command, "words"]) == 0
    assert "2 finished, 0 to do" in capsys.readouterr().out
    tables = [ScoreTable.load(file) for file in (folder / "runs").rglob("*.parquet")]
    labels = sorted(table.labels for table in tables if table.record.task == "mine_a")
    assert labels == [["Negative", "Positive"], ["bad", "good"]]


def test_one_task_cannot_be_two(folder: Path) -> None:
    assert list(find_task_files(["plain", "mine_a", "mine_*"], [str(folder)])) == ["mine_a", "mine_b", "mine_c"]
    with pytest.raises(TaskError, match="mine_a is named twice and groups change it in different ways; run words"):
        find_task_files(["plain", "words"], [str(folder)])
    assert find_single_task("functions", [str(folder)])[1].overrides.keys() == {"doc_to_text"}


def test_a_member_that_has_no_file_is_one_sentence(folder: Path) -> None:
    (folder / "broken.yaml").write_text("group: broken\ntask: [mine_a, {task: nowhere, doc_to_text: x}]\n")
    with pytest.raises(TaskError, match="group broken names the task nowhere, which is in none of the task folders"):
        find_task_files(["broken"], [str(folder)])
