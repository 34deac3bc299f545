"""Generation at the cost of the tokens that are kept: equal prompts are read once, finished rows leave the batch.

transformers reads every prompt of a batch, equal or not, and then computes all rows until the longest is done; of the
sentences that a model writes for an estimate set, most are done after a third of that. `generate` takes a decoding
loop of one's own (`custom_generate`) and still prepares sampling parameters and cache, so this is only the loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

Ended = Callable[[torch.Tensor], torch.Tensor]
"""Which rows of generated tokens are complete."""


def can_decode(model: PreTrainedModel, options: dict[str, Any]) -> bool:
    """Whether the loop serves this model and request: a cache by position, one sample per prompt, no search."""
    layers = DynamicCache(config=model.config).layers
    return (
        all(type(layer) is DynamicLayer for layer in layers)
        and model.generation_config.num_beams in (None, 1)
        and set(options) <= {"do_sample", "temperature", "top_k", "top_p", "min_p", "attention_mask"}
    )


def decoding_loop(ended: Ended) -> Callable[..., torch.Tensor]:
    """What `generate(custom_generate=…)` expects: prompts in, prompts with continuations out."""

    def decode(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        stopping_criteria: Any,  # stock ones count finished rows by their place in the batch; see `ended`
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        rows, length = input_ids.shape
        sequences = input_ids.new_full((rows, generation_config.max_length), generation_config.pad_token_id)
        sequences[:, :length] = input_ids
        active = torch.arange(rows, device=input_ids.device)
        mask = model_kwargs.get("attention_mask")  # None where nothing is padded
        passes = _passes(model, input_ids, torch.ones_like(input_ids) if mask is None else mask)
        logits = next(passes)
        for place in range(length, generation_config.max_length):
            scores = logits_processor(sequences[active, :place], logits.float())
            if generation_config.do_sample:
                tokens = torch.multinomial(scores.softmax(dim=-1), 1).squeeze(1)
            else:
                tokens = scores.argmax(dim=-1)
            sequences[active, place] = tokens
            going_on = ~ended(sequences[active, length : place + 1])
            if not going_on.any():
                return sequences[:, : place + 1]
            active = active[going_on]
            if place + 1 < generation_config.max_length:
                logits = passes.send((going_on, tokens[going_on]))
        return sequences

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
