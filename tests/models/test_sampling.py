"""Generation with hf-shared-prefix: stock's text when greedy, the model's own distribution when sampled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from lm_eval_proca.models.sampling import can_decode
from lm_eval_proca.models.shared_prefix import SharedPrefixLM
from tests.models.conftest import make_model

PROMPTS = [
    "Review: a fine film\nSentiment: Positive\n\nReview:",
    "Review: dull\nSentiment: Negative\n\nReview: no plot at all\nSentiment:",  # another length, so one is padded
    "Review: a fine film\nSentiment: Positive\n\nReview:",
]


DOZEN = [
    f"Review: the {thing} was {how}\nSentiment:"
    for thing in ("film", "old soup", "lamp")
    for how in ("warm", "cold and dull", "bright", "very funny")
]


def requests_of(prompts: list[str], **options: Any) -> list[Instance]:
    return [
        Instance("generate_until", {}, (prompt, {"max_gen_toks": 12, "until": ["\n\n"], **options}), number)
        for number, prompt in enumerate(prompts)
    ]


def pair_of(
    kind: str, tokenizer: PreTrainedTokenizerFast, batch_size: int, **options: Any
) -> tuple[HFLM, SharedPrefixLM]:
    model = make_model(kind, len(tokenizer))
    return (
        HFLM(model, tokenizer=tokenizer, batch_size=batch_size, **options),
        SharedPrefixLM(model, tokenizer=tokenizer, batch_size=batch_size, **options),
    )


def texts_of(lm: HFLM, prompts: list[str] = DOZEN, **options: Any) -> list[str]:
    return lm.generate_until(requests_of(prompts, **options), disable_tqdm=True)


def tokens_in_the_middle(stock: HFLM) -> list[int]:
    """Tokens that some of the greedy texts contain, and not in their first place; the rarest first."""
    rows = []
    for prompt in DOZEN:
        context = torch.tensor([stock.tok_encode(prompt)])
        sequences = stock.model.generate(context, max_new_tokens=12, do_sample=False)
        rows.append(set(sequences[0, context.shape[1] + 3 :].tolist()) - {stock.eot_token_id})
    counts = {token: sum(token in row for row in rows) for token in set().union(*rows)}
    return sorted(
        (token for token, count in counts.items() if 2 <= count <= 8), key=lambda token: (counts[token], token)
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


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_any_end_token_of_the_generation_config_ends_a_text(
    kind: str, batch_size: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    """As Llama 3, Gemma and Qwen have them: the end of a turn beside the end of a text."""
    stock, ours = pair_of(kind, tokenizer, batch_size)
    one = texts_of(stock)
    second, third, *_ = tokens_in_the_middle(stock)
    stock.model.generation_config.eos_token_id = [stock.eot_token_id, second]
    two = texts_of(stock)
    assert 2 <= sum(a != b for a, b in zip(one, two, strict=True)) < len(DOZEN)
    assert texts_of(ours) == two
    stock.model.generation_config.eos_token_id = [stock.eot_token_id, second, third]
    three = texts_of(stock)
    assert three != two
    assert texts_of(ours) == three
    assert texts_of(ours, until=["a"]) == texts_of(stock, until=["a"])
    assert can_decode(stock.model, tokenizer, ["a"], {})


@pytest.mark.parametrize("batch_size", [1, 5])
def test_an_end_of_text_that_the_generation_config_does_not_name(
    batch_size: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Stock goes on until all rows of a batch have shown it, and keeps what follows."""
    stock, ours = pair_of("gpt2", tokenizer, batch_size)
    end, other, *_ = tokens_in_the_middle(stock)
    for lm in (stock, ours):
        lm.tokenizer = copy.deepcopy(tokenizer)
        lm.tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    stock.model.generation_config.eos_token_id = other
    assert texts_of(ours) == texts_of(stock)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_stop_sequence_that_texts_do_not_show(batch_size: int, tokenizer: PreTrainedTokenizerFast) -> None:
    special = copy.deepcopy(tokenizer)
    stock, ours = pair_of("llama", special, batch_size)
    turn, *_ = special.convert_ids_to_tokens(tokens_in_the_middle(stock))
    special.add_special_tokens({"additional_special_tokens": [turn]})
    assert texts_of(ours, until=[turn]) == texts_of(stock, until=[turn])


def test_padding_that_texts_show(tokenizer: PreTrainedTokenizerFast) -> None:
    """One row ends at an end token and is padded for as long as stock computes the other, which ends in its text."""
    stock, ours = pair_of("llama", tokenizer, 2)
    second, *_ = tokens_in_the_middle(stock)
    before = texts_of(stock)
    stock.model.generation_config.eos_token_id = [stock.eot_token_id, second]
    same = [a == b for a, b in zip(before, texts_of(stock), strict=True)]
    prompts = [DOZEN[same.index(False)], DOZEN[same.index(True)]]
    stop = before[same.index(True)][2:5]
    for lm in (stock, ours):
        lm.tokenizer = copy.deepcopy(tokenizer)
        lm.tokenizer.pad_token = "a"
    expected = texts_of(stock, prompts, until=[stop])
    assert expected[0].endswith("aaa")
    assert texts_of(ours, prompts, until=[stop]) == expected


@pytest.mark.parametrize("token", ["a", 70])
def test_the_end_of_thinking_is_found_as_by_stock(token: str | int, tokenizer: PreTrainedTokenizerFast) -> None:
    stock, ours = pair_of("llama", tokenizer, 12, think_end_token=token)
    assert texts_of(ours, until=["e", "i"]) == texts_of(stock, until=["e", "i"])


HONOURED: list[dict[str, Any]] = [
    {"min_new_tokens": 6},
    {"min_length": 22},
    {"max_new_tokens": 5},
    {"repetition_penalty": 3.0},
    {"no_repeat_ngram_size": 1},
    {"bad_words_ids": [[70], [71, 72]]},
    {"suppress_tokens": list(range(300, 500))},
    {"begin_suppress_tokens": list(range(300))},
    {"forced_eos_token_id": 70},
    {"forced_bos_token_id": 70},
    {"exponential_decay_length_penalty": (2, 3.0)},
    {"sequence_bias": [[[70], 20.0]]},
    {"renormalize_logits": True},
]
LEFT_TO_STOCK: list[dict[str, Any]] = [
    {"guidance_scale": 3.0},
    {"encoder_repetition_penalty": 3.0},
    {"encoder_no_repeat_ngram_size": 1},
    {"watermarking_config": {"bias": 8.0}},
    {"prefill_chunk_size": 4},
    {"num_beams": 2},
    {"prompt_lookup_num_tokens": 3},
    {"cache_implementation": "static"},
]


@pytest.mark.parametrize("values", [*HONOURED, *LEFT_TO_STOCK], ids=lambda values: next(iter(values)))
def test_the_generation_config_means_what_it_means_in_stock(
    values: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> None:
    stock, ours = pair_of("llama", tokenizer, 1 if "prompt_lookup_num_tokens" in values else 5)
    second, *_ = tokens_in_the_middle(stock)
    stock.model.generation_config.eos_token_id = [stock.eot_token_id, second]
    stock.model.generation_config.update(**values)
    assert can_decode(stock.model, ours.tokenizer, ["\n\n"], {}) == (values in HONOURED)
    assert texts_of(ours) == texts_of(stock)


class OtherPositions(GPT2LMHeadModel):
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        return {**inputs, "position_ids": inputs["position_ids"] + 3}


def test_a_model_that_prepares_its_inputs_itself_is_left_to_stock(tokenizer: PreTrainedTokenizerFast) -> None:
    model = OtherPositions(make_model("gpt2", len(tokenizer)).config).eval()
    stock, ours = (lm(model, tokenizer=tokenizer, batch_size=5) for lm in (HFLM, SharedPrefixLM))
    assert texts_of(ours) == texts_of(stock)


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
