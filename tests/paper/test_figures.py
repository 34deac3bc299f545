from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.errors import ProcaError
from lm_eval_proca.paper import display as look
from lm_eval_proca.paper import get_analysis
from lm_eval_proca.paper.size import Size

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pytest.importorskip("matplotlib.pyplot")  # a test that runs alone draws nothing, but closes all figures

METHODS = {"none": 0.5, "conca": 0.6, "bc": 0.8, "proca": 0.85}


@pytest.fixture(autouse=True)
def no_figure_left_open() -> None:
    yield
    matplotlib.pyplot.close("all")


def prompt(**more) -> dict:
    return {"model": "some-model", "task": "proca_sst2", "num_fewshot": 4, "seed": 0, "eval_rows": 200, **more}


def made_rows(**keys) -> list[dict]:
    """A row per method for every combination of the keys, with an accuracy of its own."""
    rng = np.random.default_rng(0)
    combinations = [{}]
    for key, values in keys.items():
        combinations = [{**some, key: value} for some in combinations for value in values]
    return [
        prompt(**some, calibrator=method, accuracy=accuracy + 0.1 * rng.random())
        for some in combinations
        for method, accuracy in METHODS.items()
    ]


def cloud_rows(seeds: tuple[int, ...]) -> list[dict]:
    rng = np.random.default_rng(1)
    return [
        prompt(seed=seed, label=label, word=["Negative", "Positive"][label], p_positive=p)
        for seed in seeds
        for label in (0, 1)
        for p in rng.beta(2 + 3 * label, 5 - 3 * label, size=40)
    ]


def mean_percent(rows: list[dict], **keys) -> float:
    return 100 * np.mean([row["accuracy"] for row in rows if all(row[key] == value for key, value in keys.items())])


def test_lines_are_the_means_over_draws() -> None:
    rows = made_rows(task=["proca_sst2", "proca_subj"], estimate_size=[8, 40, 200], draw=[0, 1, 2])
    display = Size(rows).plot()
    for ax, task in zip(display.ax_, ["proca_sst2", "proca_subj"], strict=True):
        drawn = {line.get_label(): line for line in ax.get_lines()}
        for method in METHODS:
            line = drawn[look.METHODS[method]]
            expected = [mean_percent(rows, task=task, estimate_size=n, calibrator=method) for n in (8, 40, 200)]
            np.testing.assert_allclose(line.get_ydata(), expected)
            assert line.get_color() == look.COLOURS[method]
    assert [text.get_text() for text in display.figure_.legends[0].get_texts()] == ["raw", "ConCa", "BC", "ProCa"]


def test_imbalance_has_a_panel_per_task() -> None:
    rows = made_rows(task=["proca_sst2", "proca_subj"], positives=[0.1, 0.5, 0.9], draw=[0, 1])
    display = get_analysis("imbalance")(rows).plot()
    assert [ax.get_title() for ax in display.ax_] == ["sst2", "subj"]
    np.testing.assert_allclose(
        display.ax_[1].get_lines()[3].get_ydata(),
        [mean_percent(rows, task="proca_subj", positives=p, calibrator="proca") for p in (0.1, 0.5, 0.9)],
    )


def test_templates_show_mean_and_spread() -> None:
    rows = made_rows(task=["proca_sst2_template1", "proca_sst2_template2"], seed=[0, 1, 2])
    display = get_analysis("templates")(rows).plot()
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == ["template 1", "template 2"]
    for container, method in zip(display.ax_.containers, METHODS, strict=True):
        expected = [mean_percent(rows, task=f"proca_sst2_template{k}", calibrator=method) for k in (1, 2)]
        np.testing.assert_allclose(container.lines[0].get_ydata(orig=False), expected)


def test_spreads_are_standard_deviations_of_a_sample() -> None:
    """As `compare` and `analyze` print them: the same seeds have one spread in tables and figures."""
    templates = ["proca_sst2_template1", "proca_sst2_template2"]
    rows = made_rows(task=templates, seed=[0, 1, 2])
    display = get_analysis("templates")(rows).plot()
    for container, method in zip(display.ax_.containers, METHODS, strict=True):
        (bars,) = container.lines[2]
        for template, ((_, low), (_, high)) in zip(templates, bars.get_segments(), strict=True):
            found = [row["accuracy"] for row in rows if (row["task"], row["calibrator"]) == (template, method)]
            assert (high - low) / 2 == pytest.approx(100 * statistics.stdev(found))


def test_boxes_are_of_the_orders_of_a_proportion() -> None:
    rows = made_rows(num_fewshot=[8], positives=range(9), order=range(12))
    display = get_analysis("proportions")(rows).plot()
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()][:2] == ["8:0", "7:1"]
    medians = [line.get_ydata()[0] for line in display.ax_.get_lines() if line.get_color() == "#222222"]
    expected = [
        100 * np.median([row["accuracy"] for row in rows if row["calibrator"] == method and row["positives"] == p])
        for method in METHODS
        for p in range(9)
    ]
    np.testing.assert_allclose(medians, expected)


def test_the_heat_map_holds_every_threshold_of_every_prompt() -> None:
    thresholds = [0.1, 0.3, 0.5, 0.7, 0.9]
    common = {"conventional_accuracy": 0.6, "proca_accuracy": 0.8, "best_accuracy": 0.85, "best_threshold": 0.7}
    rows = [
        prompt(seed=seed, threshold=t, accuracy=(seed + t) / 4, proca_boundaries=[0.7], **common)
        for seed in (0, 1, 2)
        for t in thresholds
    ]
    display = get_analysis("thresholds")(rows).plot()
    expected = [[100 * (seed + t) / 4 for t in thresholds] for seed in (0, 1, 2)]
    np.testing.assert_allclose(display.ax_.images[0].get_array(), expected)
    [rectangle] = display.ax_.patches
    assert rectangle.get_x() == 1.5  # around the third column, 0.5
    np.testing.assert_allclose([line.get_xdata()[0] for line in display.ax_.get_lines()], 3)


def test_boundaries_are_drawn_where_they_are() -> None:
    rows = [row | {"boundaries": [0.5 if row["calibrator"] == "none" else 0.8]} for row in made_rows(seed=[0, 1])]
    display = get_analysis("boundaries")(rows, cloud_rows((0, 1))).plot()
    assert len(display.ax_) == 3
    for ax in display.ax_[:2]:
        places = {
            line.get_label(): line.get_xdata()[0] for line in ax.get_lines() if "boundary" in str(line.get_label())
        }
        assert places == pytest.approx({"conventional boundary": 0.0, "ProCa's boundary": np.log(4)})
    heights = [bar.get_height() for container in display.ax_[2].containers for bar in container]
    expected = [mean_percent(rows, seed=seed, calibrator=method) for method in METHODS for seed in (0, 1)]
    np.testing.assert_allclose(heights, expected)


@pytest.mark.parametrize(("name", "parameter"), [("selection", "selection"), ("formats", "features")])
def test_ablations_have_a_bar_per_value_and_number_of_shots(name: str, parameter: str) -> None:
    values = ["one_way", "another"]
    rows = [
        prompt(num_fewshot=shots, seed=seed, accuracy=0.5 + 0.01 * (shots + seed + k), **{parameter: value})
        for shots in (0, 4)
        for seed in (0, 1)
        for k, value in enumerate(values)
    ]
    display = get_analysis(name)(rows).plot()
    bars = [c for c in display.ax_.containers if isinstance(c, matplotlib.container.BarContainer)]
    heights = [bar.get_height() for container in bars for bar in container]
    expected = [mean_percent(rows, num_fewshot=n, **{parameter: value}) for value in values for n in (0, 4)]
    np.testing.assert_allclose(heights, expected)
    assert ("not quite the paper's logit" in display.footnote()) == (parameter == "features")


def test_a_display_draws_on_the_axes_it_is_given() -> None:
    rows = made_rows(task=["proca_sst2", "proca_subj"], estimate_size=[8, 40], draw=[0])
    figure, axes = matplotlib.pyplot.subplots(1, 2)
    display = Size(rows).plot(ax=axes)
    assert display.figure_ is figure
    assert list(display.ax_) == list(axes)
    with pytest.raises(ProcaError, match="2 panels, 1 axes"):
        Size(rows).plot(ax=axes[0])


def test_a_saved_figure_says_what_it_rests_on(tmp_path: Path) -> None:
    rows = made_rows(task=["proca_sst2"], estimate_size=[8, 40], draw=[0])
    rows[0]["eval_rows"] = 90
    display = Size(rows).plot()
    assert display.figure_.get_supxlabel() == "some-model; 90 to 200 evaluation rows per run"
    path = display.save(tmp_path / "new" / "size.png")
    height, width, _ = matplotlib.image.imread(path).shape
    assert (width, height) == (720, 600)
    assert not matplotlib.pyplot.fignum_exists(display.figure_.number)


def test_a_calibrator_of_ones_own_gets_a_colour_of_its_own() -> None:
    rows = made_rows(task=["proca_sst2"], estimate_size=[8, 40], draw=[0])
    rows += [{**row, "calibrator": "mine"} for row in rows if row["calibrator"] == "bc"]
    display = Size(rows).plot()
    colours = [line.get_color() for line in display.ax_.get_lines()]
    assert len(set(colours)) == len(colours) == 5


def test_without_matplotlib_there_is_one_sentence() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from lm_eval_proca.paper.analysis import MissingMatplotlib\n"
        "from lm_eval_proca.paper.size import Size\n"
        "try: Size([{'task': 'a'}]).plot()\n"
        "except MissingMatplotlib as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "Figures need matplotlib, which is not installed: pip install 'lm-eval-proca[plots]'.\n"


def test_no_rows_is_a_mistake() -> None:
    with pytest.raises(ProcaError, match="nothing to draw"):
        Size([])


def test_models_and_shots_are_not_averaged_in_a_panel() -> None:
    rows = made_rows(model=["a", "b"], num_fewshot=[0, 4], estimate_size=[8, 40], draw=[0, 1])
    rows += [{**row, "calibrator": "proca_a"} for row in rows if (row["model"], row["calibrator"]) == ("b", "bc")]
    display = Size(rows).plot()
    assert [ax.get_title() for ax in display.ax_] == [f"{m}, sst2, {n}-shot" for m in "ab" for n in (0, 4)]
    for ax, (model, shots) in zip(display.ax_, [(m, n) for m in "ab" for n in (0, 4)], strict=True):
        chosen = {"model": model, "num_fewshot": shots, "calibrator": "bc"}
        [line] = [line for line in ax.get_lines() if line.get_label() == "BC"]
        np.testing.assert_allclose(line.get_ydata(), [mean_percent(rows, estimate_size=n, **chosen) for n in (8, 40)])
    assert "ProCa-a" in [text.get_text() for text in display.figure_.legends[0].get_texts()]
    rows = made_rows(model=["a", "b"], task=["proca_sst2_template1", "proca_sst2_template2"])
    assert [ax.get_title() for ax in get_analysis("templates")(rows).plot().ax_] == ["a", "b"]
