from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from lm_eval_proca.errors import ModelError, ScoreTableError, TaskError
from lm_eval_proca.scores.redaction import public
from lm_eval_proca.sweep.cell import (
    LONGEST_NAME,
    Cell,
    Model,
    cell_folder,
    cell_scores,
    earlier_runs,
    settings_from_metadata,
)
from tests.conftest import write_jsonl
from tests.sweep.made_cells import made_cell

MODEL = Model("dummy", {})
CELL = made_cell("proca_sst2", 4, 0)


def test_name_says_what_a_cell_is():
    assert CELL.name == "proca_sst2-4shot-seed0"
    cell = made_cell("proca_sst2", 8, 3, limit=50, settings=(("order_seed", 7), ("demonstration_counts", "3/5")))
    assert cell.name == "proca_sst2-8shot-seed3-limit50-demonstration_counts=3-5-order_seed=7"


def test_cells_that_differ_have_different_folders(tmp_path: Path):
    for place in ("a", "b"):
        write_jsonl(tmp_path / place / "rows" / "sst2" / "train.jsonl", [{"sentence": place}])
    variants = [
        CELL,
        *(dataclasses.replace(CELL, **change) for change in ({"task": "proca_mr"}, {"num_fewshot": 1}, {"seed": 4})),
        *(dataclasses.replace(CELL, limit=limit) for limit in (5, 50)),
        *(
            dataclasses.replace(CELL, settings=settings)
            for settings in (
                (("estimate_size", 20),),
                (("estimate_size", 200),),
                (("demonstration_counts", "3/5"),),
                (("demonstration_counts", "3/51"),),
                (("data_dir", str(tmp_path / "a" / "rows")),),
                (("data_dir", str(tmp_path / "b" / "rows")),),
                (("estimate_split", "a b"),),
                (("estimate_split", "a_b"),),
                (("text_fields", ("x" * 200, "a")),),
                (("text_fields", ("x" * 200, "b")),),
            )
        ),
    ]
    folders = {cell_folder(tmp_path, MODEL, cell) for cell in variants}
    assert len(folders) == len(variants)
    for folder in folders:
        assert len(folder.name.encode()) <= LONGEST_NAME + 13
        folder.mkdir(parents=True)
    assert len({cell_folder(tmp_path, Model("dummy", {"bias": k}), CELL) for k in range(3)}) == 3


def test_order_of_settings_and_spelling_of_a_path_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    one = made_cell("t", 0, 0, settings=(("data_dir", "rows"), ("estimate_size", 20)))
    other = made_cell("t", 0, 0, settings=(("estimate_size", 20), ("data_dir", str(tmp_path / "x" / ".." / "rows"))))
    assert one == other
    assert one.name == other.name


def test_settings_that_say_what_the_task_says_are_the_same_cell(tmp_path: Path):
    folder = cell_folder(tmp_path, MODEL, CELL)
    folder.mkdir(parents=True)
    for settings in ((("estimate_size", 500),), (("estimate_size", "500"), ("estimate_split", "train"))):
        assert cell_folder(tmp_path, MODEL, dataclasses.replace(CELL, settings=settings)) == folder
    assert cell_folder(tmp_path, Model("dummy", {}, batch_size=64, device="cpu"), CELL) == folder


def test_what_differs_from_an_earlier_run_is_said(tmp_path: Path):
    def finish(cell: Cell) -> None:
        folder = cell_folder(tmp_path, MODEL, cell)
        folder.mkdir(parents=True)
        (folder / "identity.json").write_text(json.dumps(cell.identity(MODEL)))

    estimate = tmp_path / "estimate.jsonl"
    cells = [made_cell("proca_sst2", n, 0, settings=(("estimate_file", estimate),)) for n in (0, 4)]
    for text in ("one", "other"):
        estimate.write_text(text)
        assert bool(earlier_runs(cells, MODEL, tmp_path)) == (text == "other")
        for cell in cells[: 2 if text == "one" else 0]:
            finish(cell)
    assert earlier_runs(cells, MODEL, tmp_path) == [
        "proca_sst2-0shot-seed0 and 1 more: finished before with another content of a file (estimate_file); it now "
        "runs again, in a new folder."
    ]
    assert earlier_runs([made_cell("proca_sst2", 4, 0, 50)], MODEL, tmp_path) == []


def test_model_name_tells_models_apart_and_keeps_secrets():
    name = Model("hf", {"pretrained": "org/model", "token": "hf_secret", "tokenizer": "other", "dtype": "float16"}).name
    assert re.fullmatch("org-model-hf-dtype=float16-left-out=[0-9a-f]{6}-tokenizer=other-[0-9a-f]{12}", name)
    same_weights = [
        Model("hf", {"pretrained": "org/model"}),
        Model("vllm", {"pretrained": "org/model"}),
        Model("hf", {"pretrained": "org/model", "revision": "step10"}),
        Model("hf", {"pretrained": "org/model", "peft": "adapters/one"}),
        Model("hf", {"pretrained": "org/model", "peft": "adapters/two"}),
    ]
    assert len({model.name for model in same_weights}) == len(same_weights)
    api = Model(
        "local-completions", {"model": "m", "api_key": "sk-secret", "auth_token": "x", "base_url": "http://h:1/v1"}
    )
    assert "secret" not in api.name
    assert set(public(api.model_args)) == {"model", "base_url"}


def test_folders_of_the_same_name_are_different_models(tmp_path: Path):
    for parent in ("a", "b"):
        (tmp_path / parent / "model").mkdir(parents=True)
    names = {Model("hf", {"pretrained": str(tmp_path / parent / "model")}).name for parent in ("a", "b")}
    assert len(names) == 2
    assert all(name.startswith("model-hf-") for name in names)


def test_model_that_cannot_be_loaded_is_one_sentence():
    with pytest.raises(ModelError, match=r"no-such-backend-\w+ cannot be loaded .* check --model and --model_args\."):
        Model("no-such-backend", {}).load()


def test_missing_score_table_is_one_sentence(tmp_path: Path):
    with pytest.raises(ScoreTableError, match="has 0 score tables"):
        cell_scores(tmp_path, Model("dummy", {}), CELL)


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        (
            {"proca.estimate_sise": 3},
            r"unknown setting proca.estimate_sise\. Did you mean estimate_size\? The known ones",
        ),
        ({"proca.estimate_size": 0}, "estimate_size must be a whole number of at least 1, got 0"),
        ({"proca.scores_dir": "x"}, r"Leave proca\.scores_dir out"),
        ({"other": 1}, r"begin with proca\. here, not other"),
    ],
)
def test_mistakes_in_metadata_are_told_at_once(metadata: dict, sentence: str):
    with pytest.raises(TaskError, match=sentence):
        settings_from_metadata(metadata)


def test_data_dir_of_the_environment_is_part_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROCA_DATA_DIR", str(tmp_path))
    by_environment = settings_from_metadata({})
    assert made_cell("t", 0, 0, settings=by_environment) == made_cell(
        "t", 0, 0, settings=(("data_dir", str(tmp_path)),)
    )
    assert dict(settings_from_metadata({"proca.data_dir": "/other"})) == {"data_dir": "/other"}
