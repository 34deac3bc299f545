"""vllm-shared-prefix: lm-eval's vLLM model, asked so that vLLM reads its prefix cache.

Stock `vllm` asks for the log-probabilities of the prompt's own tokens, which cannot come from the cache. Here vLLM is
asked for one more token, with the log-probabilities of the label tokens (`SamplingParams.logprob_token_ids`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from lm_eval.api.registry import register_model

from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.engine import BLOCK_SIZE, EngineLM, Prediction, Question
from lm_eval_proca.models.probes import MAX_TOKENS
from lm_eval_proca.models.sharing import TOLERANCE, CannotShare

try:
    from lm_eval.models.vllm_causallms import VLLM
    from vllm import SamplingParams, sampling_params
    from vllm.platforms import current_platform
except ModuleNotFoundError as missing:
    raise ModelError(
        f"--model vllm-shared-prefix needs vLLM, but the module {missing.name} is missing: install it with "
        "`pip install 'lm-eval-proca[vllm]'`, or use --model hf-shared-prefix."
    ) from missing


MAX_PROMPTS = 4096
"""Prompts that vLLM is given at once: each answer holds an object for every token that it names."""


@register_model("vllm-shared-prefix")
class VLLMSharedPrefixLM(EngineLM, VLLM):
    """VLLM that reads its prefix cache. Takes all arguments of VLLM; data and tensor parallelism are vLLM's.

    `batch_size` bounds the prompts that vLLM is given at once ("auto": some thousands, vLLM forms its batches itself).
    """

    NAME, STOCK = "vllm-shared-prefix", "vllm"

    def __init__(self, pretrained: str, **kwargs: Any) -> None:
        kwargs.setdefault("enable_prefix_caching", True)
        if current_platform.is_cpu():
            kwargs.setdefault("block_size", BLOCK_SIZE)  # vLLM's 128 tokens are longer than many prefixes
        super().__init__(pretrained, **kwargs)
        self._longest_input = self.max_length - 1  # as VLLM cuts: it wants room for a generated token
        if self.data_parallel_size == 1:  # else the engines live elsewhere
            self._tolerance = TOLERANCE.get(self.model.llm_engine.model_config.dtype, self._tolerance)

    @cached_property
    def _most_tokens(self) -> int:
        return getattr(sampling_params, "MAX_LOGPROB_TOKEN_IDS", MAX_TOKENS)

    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        if not hasattr(SamplingParams, "logprob_token_ids"):
            raise CannotShare("this vLLM cannot be asked for chosen tokens, as it can from 0.21 on")
        size = MAX_PROMPTS if self.batch_size == "auto" else int(self.batch_size)
        for start in range(0, len(asked), size):
            part = asked[start : start + size]
            outputs = self._model_generate(
                requests=[question.prompt.tolist() for question in part],
                generate=True,
                # The most likely token, and the log-probabilities of the ones asked for.
                sampling_params=[
                    SamplingParams(temperature=0, max_tokens=1, detokenize=False, logprob_token_ids=question.tokens)
                    for question in part
                ],
            )
            for place, output in enumerate(outputs, start):
                [by_token] = output.outputs[0].logprobs or [{}]
                yield place, {token: found.logprob for token, found in by_token.items()}
