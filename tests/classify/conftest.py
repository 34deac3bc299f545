from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import made_sentences, train_tokenizer
from tests.models.conftest import make_model

LABELS = ["good", "bad"]
TEMPLATE = "Review: {body}\nSentiment:"


@pytest.fixture(scope="session")
def strong_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose predictions depend on every token, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("strong")
    make_model("llama", len(train_tokenizer(folder))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lm(strong_model: Path):
    from lm_eval_proca.models.shared_prefix import SharedPrefixLM

    return SharedPrefixLM(pretrained=str(strong_model), device="cpu", batch_size="auto")


@pytest.fixture(scope="session")
def stock_lm(strong_model: Path):
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(strong_model), device="cpu", batch_size=16)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [row["sentence"] for row in made_sentences(60, seed=5)]
