from __future__ import annotations

import pytest

from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.settings import read_settings, without_settings


def test_flat_and_nested_metadata_override_the_block():
    block = {"estimate_size": 500, "text_fields": ["sentence"]}
    flat = read_settings("t", block, {"proca.estimate_size": 200, "pretrained": "gpt2"})
    nested = read_settings("t", block, {"proca": {"estimate_size": 200}, "pretrained": "gpt2"})
    assert flat == nested
    assert flat.estimate_size == 200
    assert flat.text_fields == ("sentence",)


def test_values_come_typed_from_the_command_line():
    settings = read_settings(
        "t", {}, {"proca.scores_dir": 2024, "proca.demonstration_counts": "3/5", "proca.order_seed": "7"}
    )
    assert settings.scores_dir == "2024"
    assert settings.demonstration_counts == (3, 5)
    assert settings.order_seed == 7


def test_the_variable_gives_the_data_dir_and_the_run_overrides_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROCA_DATA_DIR", "/somewhere")
    assert read_settings("t", {}, {}).data_dir == "/somewhere"
    assert read_settings("t", {}, {"proca.data_dir": "/elsewhere"}).data_dir == "/elsewhere"


def test_our_settings_do_not_stay_in_the_metadata():
    assert without_settings({"pretrained": "x", "proca": {}, "proca.data_dir": "y"}) == {"pretrained": "x"}


@pytest.mark.parametrize(
    ("block", "metadata", "words"),
    [
        ({}, {"proca.estimate_sise": 3}, ["unknown setting proca.estimate_sise", "estimate_size, "]),
        ({"size": 3}, {}, ["size", "`calibration:` block", "estimate_size, "]),
        ({}, {"proca.estimate_size": 0}, ["estimate_size", "at least 1", "got 0"]),
        ({}, {"proca.estimate_size": "many"}, ["estimate_size", "whole number", "'many'"]),
        ({}, {"proca.estimate_size": True}, ["estimate_size", "whole number"]),
        ({"text_fields": []}, {}, ["text_fields"]),
        ({"estimate_size": None}, {}, ["estimate_size must have a value", "leave it out"]),
        ({}, {"proca.estimate_split": None}, ["estimate_split must have a value"]),
        ({}, {"proca": 3}, ["must be a mapping"]),
        ("yes", {}, ["must be a mapping"]),
    ],
)
def test_bad_settings_end_in_one_sentence(block, metadata, words):
    with pytest.raises(TaskError) as error:
        read_settings("my_task", block, metadata)
    sentence = str(error.value)
    assert sentence.startswith("my_task: ")
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_null_is_the_default_where_the_default_is_none():
    assert read_settings("t", {"eval_size": None}, {"proca.estimate_seed": None}) == read_settings("t", {}, {})


def test_a_setting_without_its_prefix_is_noticed(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("WARNING", logger="lm_eval.proca"):
        assert read_settings("t", {}, {"estimate_size": 40}).estimate_size == 500
    assert "did you mean proca.estimate_size?" in caplog.text


def test_calibrate_is_a_word_about_the_run_not_about_a_task():
    assert read_settings("t", {}, {"proca.calibrate": True}) == read_settings("t", {}, {})
    with pytest.raises(TaskError, match="unknown setting calibrate in the `calibration:` block"):
        read_settings("t", {"calibrate": True}, {})
