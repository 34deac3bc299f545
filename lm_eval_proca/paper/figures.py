"""The paper's figures, one display each, made from what the analysis of the same name observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from lm_eval_proca.metrics import Observation, grouped, mean
from lm_eval_proca.paper.display import (
    CLASS_COLOURS,
    COLOURS,
    OTHER_COLOURS,
    Display,
    accuracies_by,
    beside,
    distinct,
    lines_with_spread,
    log_odds,
    looks_of,
    percent,
    probability_ticks,
    prompt_of,
    short_name,
    spread_of,
    titles_of,
)

CLOUD_COLOURS = (*CLASS_COLOURS, *COLOURS.values(), *OTHER_COLOURS, "#117733", "#999933", "#332288", "#aa4499")


class BoundaryDisplay(Display):
    """Figure 2: the score clouds of each prompt with the conventional and ProCa's boundary, and a bar chart.

    The horizontal axis is P(positive) on a log-odds scale, which shows clouds that lie near 0 or 1.
    """

    panel_size = (4.2, 3.4)
    shared_legend = False

    def panels(self) -> list[Any]:
        return [*distinct(map(prompt_of, self.clouds)), None]

    def draw(self, ax: Any, panel: Any) -> None:
        if panel is None:
            self._draw_bars(ax)
        else:
            self._draw_clouds(ax, panel)

    def _draw_clouds(self, ax: Any, prompt: tuple[Any, ...]) -> None:
        from scipy.stats import gaussian_kde

        cloud = [one for one in self.clouds if prompt_of(one) == prompt]
        odds = log_odds([one["p_positive"] for one in cloud])
        label = np.array([one["label"] for one in cloud])
        words = {one["label"]: one["word"].strip() for one in cloud}
        low, high = min(odds.min(), 0.0), max(odds.max(), 0.0)
        line = np.linspace(low - 0.08 * (high - low), high + 0.08 * (high - low), 400)
        jitter = np.random.default_rng(0)
        densities = {k: gaussian_kde(odds[label == k])(line) for k in words if np.ptp(odds[label == k]) > 0}
        top = max((density.max() for density in densities.values()), default=1.0)
        for k in sorted(words):
            colour = CLASS_COLOURS[k]
            if k in densities:
                ax.fill_between(line, densities[k], color=colour, alpha=0.35, linewidth=0)
                ax.plot(line, densities[k], color=colour, linewidth=1.5, label=f"true label: {words[k]}")
            points = odds[label == k][:400]
            height = -top * (0.06 + 0.1 * k + 0.07 * jitter.random(len(points)))
            ax.scatter(points, height, s=4, color=colour, alpha=0.4, linewidths=0)
        for one in self.observed:
            if prompt_of(one) == prompt and one["calibrator"] in ("none", "proca"):
                conventional = one["calibrator"] == "none"
                for k, boundary in enumerate(one["boundaries"]):
                    name = "conventional boundary" if conventional else "ProCa's boundary"
                    ax.axvline(
                        log_odds([boundary])[0],
                        color="#e67700" if conventional else COLOURS["proca"],
                        linestyle="--",
                        linewidth=1.8,
                        ymax=0.64,
                        label=None if k else name,
                    )
        ticks = probability_ticks(line[0], line[-1])
        ax.set_xticks(log_odds(ticks), [f"{tick:g}" for tick in ticks])
        ax.set_yticks([])
        ax.set_ylim(-0.28 * top, 1.9 * top)
        ax.set_xlabel(f"P({words.get(1, 'positive')}), log-odds scale")
        ax.set_ylabel("density")
        ax.set_title(titles_of(self.observed)[prompt])
        ax.legend(loc="upper left", ncols=1)

    def _draw_bars(self, ax: Any) -> None:
        prompts = distinct(map(prompt_of, self.observed))
        looks = looks_of(self.observed)
        width = 0.8 / len(looks)
        accuracies = grouped(self.observed, lambda one: (prompt_of(one), one["calibrator"]))
        for k, (method, look) in enumerate(looks.items()):
            heights = [mean(one["accuracy"] for one in accuracies[prompt, method]) for prompt in prompts]
            bars = ax.bar(beside(len(prompts), k, len(looks), width), percent(heights), width * 0.92, **look)
            ax.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
        ax.set_xticks(range(len(prompts)), [title.replace(", ", "\n") for title in titles_of(self.observed).values()])
        ax.grid(axis="x", visible=False)
        ax.set_ylim(0, 122)  # room for the legend
        ax.set_yticks(range(0, 101, 20))
        ax.set_title("what the boundaries give")
        ax.legend(loc="upper center", ncols=len(looks), columnspacing=1.0, handlelength=1.2)


class ThresholdDisplay(Display):
    """Figure 3: accuracy of every prompt at every threshold on P(positive), as a heat map.

    A red rectangle marks the conventional threshold 0.5, a green line ProCa's boundary.
    """

    shared_legend = False
    ylabel = ""

    def plot(self, ax: Any = None) -> ThresholdDisplay:
        self.panel_size = (9.0, 1.4 + 0.42 * len(titles_of(self.observed)))  # type: ignore[misc]
        return super().plot(ax)

    def draw(self, ax: Any, panel: Any) -> None:
        from matplotlib.patches import Rectangle

        titles = titles_of(self.observed)
        thresholds = sorted({one["threshold"] for one in self.observed})
        accuracy = {(prompt_of(one), one["threshold"]): one["accuracy"] for one in self.observed}
        grid = np.array([[accuracy[prompt, threshold] for threshold in thresholds] for prompt in titles]) * 100
        image = ax.imshow(grid, aspect="auto", cmap="YlGnBu", interpolation="nearest")
        ax.grid(visible=False)
        conventional = int(np.argmin(np.abs(np.array(thresholds) - 0.5)))
        ax.add_patch(
            Rectangle((conventional - 0.5, -0.5), 1, len(titles), fill=False, edgecolor="#d62728", linewidth=2)
        )
        remarks = []
        for k, prompt in enumerate(titles):
            one = next(one for one in self.observed if prompt_of(one) == prompt)
            for boundary in one["proca_boundaries"]:
                place = np.interp(log_odds([boundary])[0], log_odds(thresholds), np.arange(len(thresholds)))
                ax.plot([place, place], [k - 0.45, k + 0.45], color=COLOURS["proca"], linewidth=3)
            at = (one["conventional_accuracy"], one["proca_accuracy"], one["best_accuracy"])
            remarks.append("at 0.5: {:.0f}, ProCa: {:.0f}, best: {:.0f}".format(*percent(at)))
        ticks = probability_ticks(*log_odds([thresholds[0], thresholds[-1]]))
        ax.set_xticks(
            np.interp(log_odds(ticks), log_odds(thresholds), np.arange(len(thresholds))), [f"{t:g}" for t in ticks]
        )
        ax.set_yticks(range(len(titles)), list(titles.values()))
        right = ax.secondary_yaxis("right")
        right.set_yticks(range(len(titles)), remarks, fontsize=8.5)
        right.tick_params(length=0)
        for axis in (ax, right):
            axis.spines[:].set_visible(False)
        ax.set_xlabel("threshold on P(positive), log-odds scale; red: the conventional 0.5, green: ProCa's boundary")
        ax.figure.colorbar(image, ax=ax, label="accuracy (%)")


class TemplateDisplay(Display):
    """Figure 4: every method under every template, mean and standard deviation over prompts."""

    panel_size = (9.0, 3.6)

    def draw(self, ax: Any, panel: Any) -> None:
        tasks = distinct(one["task"] for one in self.observed)
        looks = looks_of(self.observed)
        for k, (method, look) in enumerate(looks.items()):
            means, spread = spread_of(accuracies_by(self.observed, method, "task", tasks))
            places = beside(len(tasks), k, len(looks), 0.16)
            ax.errorbar(places, means, yerr=spread, fmt="o", markersize=5, capsize=3, linewidth=1.4, **look)
        ax.grid(axis="x", visible=False)
        ax.set_xticks(range(len(tasks)), [short_name(task) for task in tasks])


class ImbalanceDisplay(Display):
    """Figure 5: accuracy over the proportion of positives in the estimate set, one panel per task."""

    panel_size = (4.4, 3.4)
    panel_per_task = True

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        lines_with_spread(ax, observed, "positives")
        ax.set_xticks(sorted({one["positives"] for one in observed}))
        ax.set_xlabel("proportion of positives in the estimate set")


class ProportionDisplay(Display):
    """Figure 6: a box per method and label proportion, over the orders of the demonstrations."""

    panel_size = (11.0, 3.8)

    def draw(self, ax: Any, panel: Any) -> None:
        shots = max(one["num_fewshot"] for one in self.observed)
        positives = sorted({one["positives"] for one in self.observed})
        looks = looks_of(self.observed)
        width = 0.82 / len(looks)
        for k, (method, look) in enumerate(looks.items()):
            groups = accuracies_by(self.observed, method, "positives", positives)
            colour = look["color"]
            boxes = ax.boxplot(
                [percent(group) for group in groups],
                positions=beside(len(positives), k, len(looks), width),
                widths=width * 0.8,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": colour, "alpha": 0.55, "edgecolor": colour},
                medianprops={"color": "#222222", "linewidth": 1.4},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                flierprops={"marker": ".", "markersize": 4, "markerfacecolor": colour, "markeredgecolor": colour},
            )
            boxes["boxes"][0].set_label(look["label"])
        ax.set_xticks(range(len(positives)), [f"{shots - p}:{p}" for p in positives])
        ax.set_xlim(-0.6, len(positives) - 0.4)
        ax.grid(axis="x", visible=False)
        ax.set_xlabel(f"negative : positive among {shots} demonstrations")


class SizeDisplay(Display):
    """Figure 7: accuracy over the size of the estimate set, one panel per task."""

    panel_per_task = True

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        lines_with_spread(ax, observed, "estimate_size")
        ax.set_xscale("log")
        sizes = sorted({one["estimate_size"] for one in observed})
        ax.set_xticks(sizes[::3], [str(size) for size in sizes[::3]])
        ax.minorticks_off()
        ax.set_xlabel("estimate set size")


class AblationDisplay(Display):
    """Table 3 and Figure 8: ProCa with one parameter at several values, per task and number of shots."""

    panel_size = (3.8, 3.2)
    panel_per_task = True
    ylabel = "accuracy of ProCa (%)"
    colours: ClassVar[tuple[str, ...]] = ("#b9c4cf", "#6fb7a0", "#009e73")

    def __init__(self, observed: Sequence[Observation], parameter: str) -> None:
        super().__init__(observed)
        self.parameter = parameter

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        shots = sorted({one["num_fewshot"] for one in observed})
        values = distinct(one[self.parameter] for one in self.observed)
        width = 0.8 / len(values)
        accuracies = grouped(observed, lambda one: (one["num_fewshot"], one[self.parameter]))
        for k, value in enumerate(values):
            means, spread = spread_of([one["accuracy"] for one in accuracies.get((n, value), [])] for n in shots)
            places = beside(len(shots), k, len(values), width)
            ax.bar(
                places,
                means,
                width * 0.92,
                yerr=spread,
                capsize=2,
                error_kw={"elinewidth": 1, "ecolor": "#555555"},
                color=self.colours[k % len(self.colours)],
                label=value.replace("_", " "),
            )
            for place, height in zip(places, means, strict=True):
                ax.text(place, 2, f"{height:.0f}", ha="center", fontsize=8)
        ax.set_xticks(range(len(shots)), [f"{n}-shot" for n in shots])
        ax.grid(axis="x", visible=False)
        ax.set_ylim(0, 102)

    def footnote(self) -> str:
        note = "; log likelihood: the logit less the log of the sum over the vocabulary, not quite the paper's logit"
        return super().footnote() + note * (self.parameter == "features")


class SpaceDisplay(Display):
    """The evaluation rows of one run, by their label scores and by their hidden states, coloured by true label."""

    panel_size = (4.4, 4.0)
    ylabel = ""

    def panels(self) -> list[Any]:
        return distinct(one["space"] for one in self.clouds)

    def draw(self, ax: Any, panel: Any) -> None:
        cloud = [one for one in self.clouds if one["space"] == panel]
        for word, colour in zip(distinct(one["word"] for one in cloud), CLOUD_COLOURS, strict=False):
            points = [one for one in cloud if one["word"] == word]
            xy = [[one[axis] for one in points] for axis in ("x", "y")]
            ax.scatter(*xy, s=16, color=colour, alpha=0.75, linewidths=0, label=word)
        ax.set_title(f"{short_name(str(cloud[0]['task']))}: {panel}")
        ax.set_xticks([])
        ax.set_yticks([])
