"""Generation that computes only tokens that are kept: equal prompts are read once, finished rows leave the batch.

transformers reads every prompt of a batch, equal or not, and then computes all rows until the longest is done; of the
sentences that a model writes for an estimate set, most are done after a third of that. `generate` takes a decoding
loop from its caller (`custom_generate`). It still prepares sampling parameters, ends and cache, so this is only the
loop. Where the loop could write another text than stock's, `can_decode` says so and stock generates.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from lm_eval.models.utils_hf import MultiTokenEOSCriteria
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import StoppingCriteriaList

HONOURED = {
    *("eos_token_id", "bos_token_id", "pad_token_id", "forced_bos_token_id", "forced_eos_token_id", "attention_mask"),
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "exponential_decay_length_penalty"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
    *("sequence_bias", "renormalize_logits", "remove_invalid_values", "transformers_version", "_from_model_config"),
}
"""Options of `generate` whose processors and criteria take each row by itself, so that rows can leave the batch."""


def can_decode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], options: dict[str, Any]
) -> bool:
    """Whether the loop writes what stock writes: a cache by position, plain decoding, ends that the text shows."""
    config = model.generation_config
    usual = {"output_attentions": False, "output_hidden_states": False, **config._get_default_generation_params()}
    chosen = {name for name, value in config.to_dict().items() if value is not None and value != usual.get(name)}
    return (
        chosen | set(options) <= HONOURED
        and all(
            getattr(getattr(model, name, None), "__func__", None) is getattr(GenerationMixin, name)
            for name in ("generate", "prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
        )
        and "cache_position" not in inspect.signature(model.forward).parameters
        and all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)
        and _ends_are_seen(tokenizer, stop, config.eos_token_id)
    )


def _ends_are_seen(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], eos: int | list[int] | None) -> bool:
    """Whether a text without special tokens shows every stop sequence, apart from the end tokens of `generate`.

    Behind any other end, and in visible padding, stock's text depends on when the other rows of the batch end.
    """
    try:
        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    except NotImplementedError:  # mistral-common's tokenizers do not tell
        return False
    hidden = {*special, *tokenizer.all_special_ids} - {*(eos if isinstance(eos, list) else [eos])}
    texts = [str(tokenizer.decode([number])) for number in hidden]
    pads = tokenizer.decode([tokenizer.pad_token_id], skip_special_tokens=True)
    return not pads and not any(_overlap(sequence, text) for sequence in stop for text in texts)


def _overlap(a: str, b: str) -> bool:
    """Whether one holds the other, or begins with the end of the other."""
    return a in b or b in a or any(a.endswith(b[:n]) or b.endswith(a[:n]) for n in range(1, min(len(a), len(b))))


def decoding_loop(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> Callable[..., torch.Tensor]:
    """What `generate(custom_generate=…)` expects: prompts in, prompts with continuations out."""
    # A stop sequence may begin within a token.
    tail = max((len(sequence.encode()) for sequence in stop), default=0) + 1

    def has_stopped(generated: torch.Tensor) -> torch.Tensor:
        texts = tokenizer.batch_decode(generated[:, -tail:], skip_special_tokens=True)
        return generated.new_tensor([any(sequence in text for sequence in stop) for text in texts], dtype=torch.bool)

    def decode(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        # lm-eval's criteria know rows by their place in the batch; `has_stopped` stands for them.
        has_ended = StoppingCriteriaList([c for c in stopping_criteria if not isinstance(c, MultiTokenEOSCriteria)])
        rows, length = input_ids.shape
        sequences = input_ids.new_full((rows, generation_config.max_length), generation_config.pad_token_id)
        sequences[:, :length] = input_ids
        active = torch.arange(rows, device=input_ids.device)
        mask = model_kwargs.get("attention_mask")  # None where nothing is padded
        passes = _passes(model, input_ids, torch.ones_like(input_ids) if mask is None else mask)
        logits, place = next(passes), length
        while True:
            scores = logits_processor(sequences[active, :place], logits.float())
            if generation_config.do_sample:
                tokens = torch.multinomial(scores.softmax(dim=-1), 1).squeeze(1)
            else:
                tokens = scores.argmax(dim=-1)
            sequences[active, place] = tokens
            place += 1
            so_far = sequences[active, :place]
            going_on = ~(has_ended(so_far, None) | has_stopped(so_far[:, length:]))
            if not going_on.any():
                return sequences[:, :place]
            active = active[going_on]
            logits = passes.send((going_on, tokens[going_on]))

    return decode


def _passes(
    model: PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor
) -> Generator[torch.Tensor, tuple[torch.Tensor, torch.Tensor], None]:
    """Logits of the next token of every row; then, given which rows go on and with what token, of those rows."""
    taken = inspect.signature(model.forward).parameters
    prompts, prompt_of = torch.stack([mask, input_ids]).unique(dim=1, return_inverse=True)
    cache = DynamicCache(config=model.config)

    def logits_of(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        optional = {"position_ids": places, "logits_to_keep": 1}
        kwargs = {name: value for name, value in optional.items() if name in taken}
        return model(tokens, attention_mask=mask, past_key_values=cache, use_cache=True, **kwargs).logits[:, -1]

    logits = logits_of(prompts[1], prompts[0])[prompt_of]
    cache.batch_select_indices(prompt_of)
    while True:
        going_on, tokens = yield logits
        if not going_on.all():
            mask = mask[going_on]
            cache.batch_select_indices(going_on.nonzero().squeeze(1))
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        logits = logits_of(tokens[:, None], mask)
