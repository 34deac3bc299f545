"""Generation with hf-shared-prefix: stock's text when greedy, the model's own distribution when sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_eval_proca.models.shared_prefix import SharedPrefixLM
from tests.models.conftest import make_model

PROMPTS = [
    "Review: a fine film\nSentiment: Positive\n\nReview:",
    "Review: dull\nSentiment: Negative\n\nReview: no plot at all\nSentiment:",  # another length, so one is padded
    "Review: a fine film\nSentiment: Positive\n\nReview:",
]


def requests_of(prompts: list[str], **options: Any) -> list[Instance]:
    return [
        Instance("generate_until", {}, (prompt, {"max_gen_toks": 12, "until": ["\n\n"], **options}), number)
        for number, prompt in enumerate(prompts)
    ]


def pair_of(kind: str, tokenizer: PreTrainedTokenizerFast, batch_size: int) -> tuple[HFLM, SharedPrefixLM]:
    model = make_model(kind, len(tokenizer))
    return (
        HFLM(model, tokenizer=tokenizer, batch_size=batch_size),
        SharedPrefixLM(model, tokenizer=tokenizer, batch_size=batch_size),
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama", "cohere", "bloom", "mistral", "gemma2", "mamba"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_greedy_text_is_that_of_stock(kind: str, batch_size: int, tokenizer: PreTrainedTokenizerFast) -> None:
    stock, ours = pair_of(kind, tokenizer, batch_size)
    expected = stock.generate_until(requests_of(PROMPTS), disable_tqdm=True)
    assert ours.generate_until(requests_of(PROMPTS), disable_tqdm=True) == expected
    # Stop sequences that stock's own text contains, so that rows end at different places.
    stops = [text[3:6] for text in expected if len(text) > 6]
    stopped = stock.generate_until(requests_of(PROMPTS, until=stops), disable_tqdm=True)
    assert stopped != expected
    assert ours.generate_until(requests_of(PROMPTS, until=stops), disable_tqdm=True) == stopped


class OnlyWhatItNames(GPT2LMHeadModel):
    """As models with code of their own often are: no choice of positions for logits, no further arguments."""

    def forward(self, input_ids, past_key_values=None, attention_mask=None, use_cache=None, return_dict=None):
        return super().forward(
            input_ids, past_key_values=past_key_values, attention_mask=attention_mask, use_cache=use_cache
        )


def test_a_forward_pass_is_given_only_what_it_takes(tokenizer: PreTrainedTokenizerFast) -> None:
    model = OnlyWhatItNames(make_model("gpt2", len(tokenizer)).config).eval()
    stock, ours = HFLM(model, tokenizer=tokenizer), SharedPrefixLM(model, tokenizer=tokenizer)
    expected = stock.generate_until(requests_of(PROMPTS), disable_tqdm=True)
    assert ours.generate_until(requests_of(PROMPTS), disable_tqdm=True) == expected


def test_equal_prompts_are_read_once_and_finished_rows_leave(tokenizer: PreTrainedTokenizerFast) -> None:
    _, ours = pair_of("llama", tokenizer, 64)
    shapes: list[tuple[int, ...]] = []
    ours.model.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    vowels = {"do_sample": True, "temperature": 1.0, "until": list("aeiou")}
    torch.manual_seed(0)
    texts = ours.generate_until(requests_of([PROMPTS[0]] * 64, **vowels), disable_tqdm=True)
    assert len(set(texts)) > 10
    assert shapes[0] == (1, len(tokenizer.encode(PROMPTS[0])))
    rows = [shape[0] for shape in shapes[1:]]
    assert all(length == 1 for _, length in shapes[1:])
    assert 64 > rows[0] > rows[-1] > 0
    assert rows == sorted(rows, reverse=True)


def test_samples_follow_the_models_distribution(tokenizer: PreTrainedTokenizerFast) -> None:
    """First tokens of many samples, from two prompts at once, against the softmax of a plain forward pass."""
    _, ours = pair_of("gpt2", tokenizer, 512)
    prompts = [PROMPTS[0], PROMPTS[1]]
    drawn: dict[str, list[torch.Tensor]] = {prompt: [] for prompt in prompts}
    generate = ours._model_generate

    def keep(context: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        sequences = generate(context, *args, **kwargs)
        for row, first in zip(context, sequences[:, context.shape[1]], strict=True):
            drawn[tokenizer.decode(row, skip_special_tokens=True)].append(first)
        return sequences

    ours._model_generate = keep
    torch.manual_seed(1)
    n, temperature = 2000, 2.0
    options = {"do_sample": True, "temperature": temperature, "top_k": 0, "max_gen_toks": 1}
    ours.generate_until(requests_of(prompts * n, **options), disable_tqdm=True)
    for prompt in prompts:
        with torch.no_grad():
            logits = ours.model(torch.tensor([tokenizer.encode(prompt)])).logits[0, -1]
        expected = (logits / temperature).softmax(-1)
        counts = torch.bincount(torch.stack(drawn[prompt]), minlength=len(expected))
        assert counts.sum() == n
        likely = n * expected > 5
        spread = (n * expected * (1 - expected)).sqrt()
        assert ((counts - n * expected).abs()[likely] < 5 * spread[likely]).all()
        assert likely.sum() > 20


def test_sampled_text_depends_on_the_seed_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    _, ours = pair_of("llama", tokenizer, 2)
    texts = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(ours.generate_until(requests_of(PROMPTS, do_sample=True, temperature=1.0), disable_tqdm=True))
    assert texts[0] == texts[1] != texts[2]


def test_beam_search_is_stock(tokenizer: PreTrainedTokenizerFast) -> None:
    stock, ours = pair_of("gpt2", tokenizer, 1)
    options = {"num_beams": 3, "do_sample": False}
    expected = stock.generate_until(requests_of(PROMPTS, **options), disable_tqdm=True)
    assert ours.generate_until(requests_of(PROMPTS, **options), disable_tqdm=True) == expected
