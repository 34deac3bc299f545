"""Five prompts, or self-labelled ones, with ours against one prompt with stock hf; memory against one prompt with ours.

    python -m benchmarks.several_prompts [--data-dir DIR] [--model DIR] [--repeats 3]

As in `scoring`: one set of weights, the same threads, stock at its fastest batch size, one call of `loglikelihood`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator

from lm_eval.api.instance import Instance

from benchmarks.prompts import Prompts, build
from benchmarks.ratios import Ratio, alternate, median_ratio
from benchmarks.scoring import BATCH_SIZES, Pair, Scenario, add_options, load, measured, peak_memory

PROMPTS = 5
SELF_SHOTS, TRUE_SHOTS = 6, 4
SELF_GOAL = 1.5
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
        if scenario.shots == TRUE_SHOTS:
            yield from self_labelled(pair, scenario, arguments)


def self_labelled(pair: Pair, scenario: Scenario, arguments: argparse.Namespace) -> Iterator[Ratio]:
    """Both passes of `--demonstrations self` against one prompt of stock, with true shots and with none.

    The first pass has no shots; the second asks the same again and has four prompts with shots.
    """

    def given(shots: int, draw: int = 0) -> Prompts:
        return build(scenario.task, shots, scenario.documents, arguments.data_dir, draw)

    first, shown = given(0).requests, [given(SELF_SHOTS, draw).requests for draw in range(PROMPTS - 1)]
    second = [request for requests in (first, *shown) for request in requests]
    stock = {f"stock, {shots} shots": given(shots) for shots in (TRUE_SHOTS, 0)}
    sizes = {name: pair.fastest_batch_size(one, BATCH_SIZES) for name, one in stock.items()}
    runs: dict[str, Callable[[], object]] = {"ours": lambda: (pair.run_ours(first), pair.run_ours(second))}
    runs |= {name: lambda one=one, n=sizes[name]: pair.run_stock(one.requests, n) for name, one in stock.items()}  # type: ignore[misc]
    seconds = alternate(runs, arguments.repeats)
    for name, goal in zip(stock, (SELF_GOAL, None), strict=True):
        yield Ratio(
            f"{scenario.task.removeprefix('proca_')}: self-labelled, both passes / {name}",
            median_ratio(seconds, "ours", name),
            goal,
            at_most=True,
            details={"seconds": [statistics.median(seconds[side]) for side in ("ours", name)]},
        )


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
    measured("several_prompts", measure, parser.parse_args(argv), prompts=PROMPTS)


if __name__ == "__main__":
    main()
