"""What hidden states cost: keeping them in the pass that scores, and fitting prototypes to them.

    python -m benchmarks.representations [--data-dir DIR] [--model DIR]

Both are measured against the same work without: scoring with no layer kept, and the goals of time and memory of a fit.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mixture import made_scores
from benchmarks.prompts import build
from benchmarks.ratios import Ratio, alternate, median_ratio, save, show
from benchmarks.scoring import FEW_SHOTS, Pair, Scenario, add_options, load, peak_memory, rows_folder
from lm_eval_proca import RepresentationCalibrator
from lm_eval_proca.harness.settings import Settings


def capture(pair: Pair, scenario: Scenario, data_dir: Path | None, repeats: int) -> Ratio:
    prompts = build(scenario.task, scenario.shots, scenario.documents, data_dir)
    asking = prompts.asking(Settings.layers)
    answers: list[Any] = []
    seconds = alternate(
        {"without": lambda: pair.run_ours(prompts.requests), "with": lambda: answers.append(pair.run_ours(asking))},
        repeats,
    )
    if any(answer.values is None for answer in answers[0][:: len(prompts.labels)]):
        raise SystemExit(f"{scenario}: a document has no hidden states.")
    return Ratio(
        f"{scenario}: scoring with hidden states of {len(Settings.layers)} layers / without",
        median_ratio(seconds, "with", "without"),
        1.03,
        at_most=True,
        details={"seconds": [statistics.median(seconds["with"]), statistics.median(seconds["without"])]},
    )


def fit(rows: int, labels: int, width: int, repeats: int) -> list[Ratio]:
    """Seconds and peak memory above the input, each over its goal."""
    rng = np.random.default_rng(0)
    scores = made_scores(rows, labels)
    layers = rng.normal(size=(2, rows, width)).astype(np.float32)
    layers += 0.3 * rng.normal(size=(2, labels, width))[:, scores.argmax(axis=1)]
    layers = layers.astype(np.float16)
    calibrator = RepresentationCalibrator()
    calibrator.fit(scores[:100], representations=layers[:, :100])  # imports scikit-learn's PCA
    seconds = alternate({"fit": lambda: calibrator.fit(scores, representations=layers)}, repeats)["fit"]
    memory = peak_memory(lambda: calibrator.fit(scores, representations=layers)) / 2**20
    work = f"prototypes, {rows} rows x {labels} labels x two layers of {width}"
    median = statistics.median(seconds)
    return [
        Ratio(f"{work}: seconds / 2 s", median / 2, 1, at_most=True, details={"seconds": seconds}),
        Ratio(f"{work}: memory / 500 MiB", memory / 500, 1, at_most=True, details={"MiB": memory}),
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    arguments = parser.parse_args(argv)
    data_dir = rows_folder(arguments.data_dir)
    rows = fit(3000, 14, 4096, arguments.repeats)
    for row in rows:
        show(row)
    pair = Pair(load(arguments.model))
    pair.run_ours(build("proca_sst2", 1, 16, data_dir).requests)  # warm up, and let ours check the model
    for scenario in (FEW_SHOTS[0], FEW_SHOTS[2], FEW_SHOTS[3]):
        rows.append(capture(pair, scenario, data_dir, max(7, arguments.repeats)))
        show(rows[-1])
    save("representations", rows, {"rows": "real" if data_dir else "made", "repeats": arguments.repeats})


if __name__ == "__main__":
    main()
