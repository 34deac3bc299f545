"""hf-shared-prefix: lm-eval's Hugging Face model, which computes every common beginning of prompts once.

All requests of a classification task begin with the same instruction and demonstrations, and all labels of a document
with the same prompt. Stock `hf` computes all of that again for every document, and logits at every position. Here a
prefix tree of the requests (see `prefix_tree`) is computed: keys and values of a long common prefix once, then
documents as continuations of it, one after the other in a row. The attention mask lets each token see the prefix and
its own ancestors, within the window of the layer; position ids put it where it stands in its own prompt.

A model must do what mask, positions and cache ask of it. So where a row is of a new kind, or longer than all rows of
its kind before, a plain pass over one of its requests must give the same log-probabilities. A common prefix is read by
such a pass, which makes most checks free. If a check fails, stock scores the requests and a log line says why.
"""

from __future__ import annotations

import atexit
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from lm_eval_proca.distributed import collective
from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.hidden_states import check_layers, hidden_states_at, readers_of
from lm_eval_proca.models.prefix_tree import Answer, Group, Limits, Pass, Request, plan
from lm_eval_proca.models.probes import Probes
from lm_eval_proca.models.sampling import can_decode, decoding_loop
from lm_eval_proca.models.sharing import TOLERANCE, CannotShare, SharedPrefix, TokenizedRequest, logger
from lm_eval_proca.representations import Answered, Layer, Representation, Wanted, scaled

# On a CPU measured with two cores, for prefixes of 0 to 700 tokens; accelerators want larger passes.
MAX_BATCH_TOKENS_CPU, MAX_BATCH_TOKENS = 512, 4096
# Elements of the largest logits tensor: 128 MiB in float32.
MAX_LOGITS = 2**25


class CannotSlide(Exception):
    """CannotShare, of prompts that are longer than the model's attention window."""


class PrefixLayer(DynamicLayer):
    """Keys and values of a prefix in one layer, read by every pass and never written."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, layer: CacheLayerMixin, length: int) -> None:
        super().__init__()
        assert isinstance(layer.keys, torch.Tensor)
        assert isinstance(layer.values, torch.Tensor)
        self.lazy_initialization(layer.keys, layer.values)
        self.keys, self.values = layer.keys[..., :length, :], layer.values[..., :length, :]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = len(key_states)
        return (
            torch.cat([self.keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )


@register_model("hf-shared-prefix")
class SharedPrefixLM(SharedPrefix, HFLM):
    """HFLM that computes what requests have in common once. Takes all arguments of HFLM.

    `batch_size` bounds the documents of one forward pass ("auto": no bound), `max_batch_tokens` its new tokens.
    Under torchrun or accelerate, processes share the documents on any device, on one node or several.
    """

    NAME, STOCK = "hf-shared-prefix", "hf"

    def __init__(self, pretrained: Any, max_batch_tokens: int | None = None, **kwargs: Any) -> None:
        super().__init__(pretrained, **kwargs)
        if max_batch_tokens is None:
            max_batch_tokens = MAX_BATCH_TOKENS_CPU if self.device.type == "cpu" else MAX_BATCH_TOKENS
        if max_batch_tokens < 1:
            raise ModelError(f"hf-shared-prefix: max_batch_tokens is {max_batch_tokens}, but must be at least 1.")
        self.max_batch_tokens = max_batch_tokens
        self._longest_input = self.max_length + 1
        self._logits_checked = False
        self._checked: dict[tuple[bool, ...], int] = {}  # tokens of the longest row of a kind, prefix included
        self._slides = True  # whether windows can be put into the masks
        # Where each process holds the whole model, it takes its part of the documents: by global rank, on CPUs too.
        data_parallel = isinstance(pretrained, str) and not kwargs.get("parallelize") and kwargs.get("tp_plan") is None
        if data_parallel and dist.is_available() and dist.is_initialized():
            self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
            atexit.register(_close_process_group)

    # Not through accelerate, as in HFLM: on CPUs accelerate opens the process group, but reports a single process.
    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size <= 1:
            return tensor
        tensor = torch.atleast_1d(tensor).contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with collective():
            dist.all_gather(parts, tensor)
        return torch.cat(parts)

    def barrier(self) -> None:
        if self.world_size > 1:
            with collective():
                dist.barrier()

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any) -> torch.Tensor:
        """As HFLM; equal prompts are read once and finished rows leave the batch, where the text stays the same."""
        # HFLM cuts a text at the end of thinking before it looks for stop sequences, so rows must go on behind those.
        causal = self.backend == "causal" and self.think_end_token is None
        if causal and can_decode(self.model, self.tokenizer, stop, options):
            options["custom_generate"] = decoding_loop(self.tokenizer, stop)
        return super()._model_generate(context, max_length, stop, **options)

    def _detect_batch_size(self, requests: Sequence[Any] | None = None, pos: int = 0) -> int:
        """What stock computes at once with `batch_size=auto`, for requests that cannot share.

        Stock tries 64 rows, and fewer after each error. On a CPU there is no error: the kernel ends the process.
        """
        if self.device.type != "cpu":
            return int(super()._detect_batch_size(requests, pos))
        length = sum(map(len, requests[pos][1:])) if requests else self.max_length
        return max(1, min(self.max_batch_size, MAX_LOGITS // (min(length, self.max_length) * self.vocab_size)))

    def _is_cut(self, context: Sequence[int], continuation: Sequence[int]) -> bool:
        if self.backend == "causal":
            return super()._is_cut(context, continuation)
        return len(context) > self.max_length

    def _answers(self, requests: list[TokenizedRequest]) -> Iterator[tuple[int, Answered]]:
        longest = self._longest_shared_input()
        for layers in {wanted.layers for wanted in self._wanted.values() if wanted.layers}:
            check_layers(layers, len(self._readers) - 1)
        inputs = [self._checked_input(*request) for request in requests]
        numbers = [number for number, request in enumerate(inputs) if len(request.tokens) <= longest]
        if len(numbers) < len(inputs):
            self._warn_once(
                f"hf-shared-prefix scores {len(inputs) - len(numbers)} of {len(inputs)} requests like hf: beyond "
                f"{longest} tokens this model's attention or positions depend on the length of the prompt."
            )
        limits = Limits(
            tokens=self.max_batch_tokens,
            scored=max(1, MAX_LOGITS // self.vocab_size),
            prompts=None if self.batch_size == "auto" else self.batch_size,
        )
        while numbers:
            done: set[int] = set()
            try:
                groups = plan(inputs, numbers, limits)
                for number, answer in (found for group in groups for found in self._scored(group, inputs)):
                    if math.isnan(answer[0]) and limits.prompts != 1:
                        continue  # perhaps a neighbour's: no mask stops it, as 0 x NaN is NaN
                    done.add(number)
                    yield number, answer
                limits = limits._replace(prompts=1)  # for what is left
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error) or limits.tokens == 1:  # one request is too much: nothing to halve
                    raise
                limits = limits.halved()
                logger.warning(f"hf-shared-prefix goes on with passes of {limits.tokens} tokens: {error}")
            except CannotSlide as reason:
                self._slides = False
                self._warn_once(
                    f"hf-shared-prefix scores prompts of more than {self._window} tokens like hf: {reason}."
                )
                numbers = [number for number in numbers if len(inputs[number].tokens) <= self._window]
            numbers = [number for number in numbers if number not in done]

    def _left_to_stock(self, requests: dict[int, TokenizedRequest], disable_tqdm: bool) -> Iterable[Answered]:
        """With probes as further continuations: stock's logits_cache answers all of one context from one pass."""
        wanted = {n: one for n in requests if (one := self._wanted.get(n)) is not None and one.probes}
        if self.backend != "causal" or not self.logits_cache or not wanted:
            return super()._left_to_stock(requests, disable_tqdm)
        kinds = {n: Representation(probes=self._probes.beside(one.labels)) for n, one in wanted.items()}
        # Without a text, as windows of loglikelihood_rolling, so that no cache keeps them.
        further: list[Any] = [(None, requests[n][1], [token]) for n, kind in kinds.items() for token in kind.probes]
        answers = iter(self._stock([*requests.values(), *further], disable_tqdm))
        found = {n: Answered(pair) for n, pair in zip(requests, answers, strict=False)}
        for n, kind in kinds.items():
            found[n].representation = kind
            values = np.array([[value for value, _ in islice(answers, len(kind.probes))]])
            found[n].values = scaled(values, kind)
        return found.values()

    def _checked_input(self, text: tuple[str, str], context: list[int], continuation: list[int]) -> Request:
        request = self._input(context, continuation)
        if not context or not continuation or request.first_scored < 0:
            raise ModelError(
                f"hf-shared-prefix: the request {text!r} has {len(context)} context and {len(continuation)} "
                f"continuation tokens, but both must be there and the continuation at most {self.max_length} long."
            )
        return request

    def _longest_shared_input(self) -> int:
        """The length up to which inputs can share; CannotShare where a look at the model shows that none can."""
        if self.backend != "causal":
            raise CannotShare("an encoder-decoder model has no common prefix to keep")
        if not self.logits_cache:
            raise CannotShare("logits_cache=False asks to compute every request by itself")
        config = self.model.config
        if (attention := config._attn_implementation) not in ("sdpa", "eager"):
            raise CannotShare(f"our attention masks need attn_implementation=sdpa or eager, not {attention}")
        layers = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
        if unknown := layers - {"DynamicLayer", "DynamicSlidingWindowLayer"}:
            raise CannotShare(f"its cache is not one of keys and values by position ({', '.join(sorted(unknown))})")
        # Windows that our masks cannot show, and chunks of attention: within them, attention is plain.
        lengths = [length for length in self._windows if length and not (self._slides and length == self._window)]
        text = config.get_text_config(decoder=True)
        rope = getattr(text, "rope_parameters", None) or {}
        for parameters in [rope] if "rope_type" in rope else rope.values():
            kind = parameters.get("rope_type", "default")
            if kind == "longrope" or "dynamic" in kind:  # beyond, all rotations depend on the longest prompt of a pass
                lengths.append(parameters.get("original_max_position_embeddings") or text.max_position_embeddings)
        return min([self.max_length, *lengths])

    @functools.cached_property
    def _window(self) -> int:
        """Tokens that sliding layers attend to, a token itself the last; no bound where they have none in common."""
        length: Any = getattr(self.model.config.get_text_config(decoder=True), "sliding_window", None)
        return length if set(self._windows) - {None} == {length} else sys.maxsize  # chunks of attention stand elsewhere

    @functools.cached_property
    def _windows(self) -> list[int | None]:
        """The window or chunk of each layer."""
        return [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=self.model.config).layers]

    @functools.cached_property
    def _readers(self) -> list[torch.nn.Module]:
        return readers_of(self.model)

    @functools.cached_property
    def _probes(self) -> Probes:
        return Probes(self.tokenizer)

    def _scored(self, group: Group, requests: list[Request]) -> Iterator[tuple[int, Answered]]:
        """The answers of all passes of a group, compared with plain passes where a row is new to this model."""
        cache = None
        for scored in group.passes:
            beyond = scored.longest > self._window
            new = self._new_rows(scored, group.prefix, beyond)
            if not self._logits_checked:
                self._check_logits(Request(requests[scored.answers[0].request].tokens[-8:], [0]))
            rows = {*new.values(), *([0] if group.prefix and cache is None else [])}
            answers = [self._answer_to_check(scored, row, group.prefix) for row in sorted(rows)]
            expected = []
            for request in (requests[answer.request] for answer in answers):
                plain = None
                if group.prefix and cache is None:
                    cache, plain = self._encode_prefix(group.prefix, request)
                if plain is None or (beyond and new):  # windows may depend on the cache that a model is given
                    plain = self._plain_pass(request)
                expected.append(plain)
            try:
                log_probs, states = self._predictions(scored, group.prefix, cache)
                if not log_probs.isnan().any():  # those are scored again
                    for answer, plain in zip(answers, expected, strict=True):
                        self._compare(plain, log_probs[answer.places])
                    self._checked.update({kind: group.prefix + len(scored.rows[row]) for kind, row in new.items()})
            except CannotShare as reason:
                if new and beyond:
                    raise CannotSlide(str(reason)) from reason
                raise
            yield from self._read(scored, log_probs, states, requests)

    def _new_rows(self, scored: Pass, prefix: int, beyond: bool) -> dict[tuple[bool, ...], int]:
        """Numbers of rows that are longer than all rows of their kind so far: one of each kind, the longest."""
        new: dict[tuple[bool, ...], int] = {}
        if prefix or not scored.is_plain:  # a plain pass without prefix is what stock computes
            for number, row in enumerate(scored.rows):
                kind = (scored.is_plain, prefix > 0, row.prompts > 1, beyond)
                if prefix + len(row) > self._checked.get(kind, 0):
                    new.setdefault(kind, number)
        return new

    def _answer_to_check(self, scored: Pass, number: int, prefix: int) -> Answer:
        """The answer of a row that shows a fault best: beyond the window, then far from where its prompt begins."""
        row = scored.rows[number]

        def exposure(answer: Answer) -> tuple[bool, int, int]:
            place = int(answer.places[-1])
            return bool(row.positions[place] >= self._window), row.foreign_before(place, prefix), place

        return scored.answer(number, max(row.answers, key=exposure))

    def _encode_prefix(self, length: int, request: Request) -> tuple[Cache, torch.Tensor | None]:
        """Keys and values of the prefix, and what the plain pass over a whole request predicts at its end."""
        full = DynamicCache()
        expected = self._plain_pass(request, past_key_values=full, use_cache=True)
        if expected.isnan().any() and len(request.tokens) > length:  # whatever follows the prefix must not reach it
            return self._encode_prefix(length, Request(request.tokens[:length], [0]))[0], None
        layers = [layer for layer in full.layers if isinstance(layer, CacheLayerMixin) and layer.is_initialized]
        if not layers or any(layer.get_seq_length() != len(request.tokens) for layer in layers):
            raise CannotShare("its forward pass does not keep keys and values in the cache it is given")
        return Cache(layers=[PrefixLayer(layer, length) for layer in layers]), expected

    def _plain_pass(self, request: Request, **kwargs: Any) -> torch.Tensor:
        """Log-probabilities where a request predicts its continuation, computed by itself."""
        places = np.arange(request.first_scored, len(request.tokens))
        return self._log_probs(np.array([request.tokens]), places, **kwargs)

    def _predictions(
        self, scored: Pass, prefix: int, cache: Cache | None
    ) -> tuple[torch.Tensor, dict[Layer, torch.Tensor]]:
        """Log-probabilities, and hidden states by layer, at the scored places of every row, one row after the other."""
        kwargs: dict[str, Any] = {"past_key_values": cache, "use_cache": cache is not None}
        if not scored.is_plain:
            kwargs["attention_mask"] = self._mask(scored, prefix)
            kwargs["position_ids"] = torch.from_numpy(scored.positions()).to(self.device)
        wanted = [self._wanted[answer.request] for answer in scored.answers if answer.request in self._wanted]
        layers = {layer for one in wanted for layer in one.layers}
        places = torch.from_numpy(scored.scored).to(self.device)
        with hidden_states_at(places, self._readers if layers else [], layers) as states:
            log_probs = self._log_probs(scored.tokens(), scored.scored, **kwargs)
        return log_probs, states

    def _read(
        self, scored: Pass, log_probs: torch.Tensor, states: dict[Layer, torch.Tensor], requests: list[Request]
    ) -> Iterator[tuple[int, Answered]]:
        """The answers of a pass with the numbers of their requests."""
        answers = scored.answers
        places = torch.from_numpy(np.concatenate([answer.places for answer in answers])).to(log_probs.device)
        tokens = torch.tensor([token for answer in answers for token in requests[answer.request].continuation])
        values = log_probs[places, tokens.to(log_probs.device)].cpu()
        greedy = log_probs.argmax(dim=-1)[places].cpu() == tokens
        sizes = [len(answer.places) for answer in answers]
        for answer, value, match in zip(answers, values.split(sizes), greedy.split(sizes), strict=True):
            answered = Answered((float(value.sum()), bool(match.all())))
            if (wanted := self._wanted.get(answer.request)) is not None:
                place = int(answer.places[0])  # the one that predicts the first token of the continuation
                self._represent(answered, wanted, log_probs[place], {layer: states[layer][place] for layer in states})
            yield answer.request, answered

    def _represent(
        self, answered: Answered, wanted: Wanted, log_probs: torch.Tensor, states: dict[Layer, torch.Tensor]
    ) -> None:
        if wanted.layers:
            answered.representation = wanted.states
            found = torch.stack([states[layer] for layer in wanted.layers])
        else:
            answered.representation = Representation(probes=self._probes.beside(wanted.labels))
            found = log_probs[None, list(answered.representation.probes)].float()
        answered.values = scaled(found.cpu().numpy(), answered.representation)

    def _mask(self, scored: Pass, prefix: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """A mask for all layers, or where windows make a difference in some of them, one for each kind of layer."""

        def added(visible: np.ndarray) -> torch.Tensor:
            mask = torch.zeros(visible.shape, dtype=self.model.dtype)
            mask.masked_fill_(torch.from_numpy(~visible), torch.finfo(mask.dtype).min)
            return mask[:, None].to(self.device)

        if scored.longest <= self._window:
            return added(scored.visible(prefix))
        within = added(scored.visible(prefix, self._window))
        if None not in self._windows:
            return within
        return {"full_attention": added(scored.visible(prefix)), "sliding_attention": within}

    def _log_probs(self, tokens: np.ndarray, places: np.ndarray, **kwargs: Any) -> torch.Tensor:
        """Log-probabilities of the next token at these places of every row, one row after the other."""
        inputs, keep = torch.from_numpy(tokens).to(self.device), torch.from_numpy(places).to(self.device)
        try:
            dtype = self.mixed_precision_dtype
            with torch.no_grad(), torch.autocast(self.device.type, dtype, enabled=dtype is not None):
                logits = self.model(inputs, logits_to_keep=keep, **kwargs).logits
        except Exception as error:  # whatever the model's own code raises when it is asked for something unusual
            if _is_out_of_memory(error):
                raise
            raise CannotShare(f"its forward pass fails with {type(error).__name__}: {error}") from error
        if logits.shape[:2] != (len(inputs), len(keep)):
            raise CannotShare("its forward pass does not compute logits at chosen positions")
        return F.log_softmax(logits.flatten(0, 1), dim=-1, dtype=self.softmax_dtype)

    def _check_logits(self, request: Request) -> None:
        """Logits at a chosen position must be those that HFLM reads there."""
        stock = self._model_call(torch.tensor([request.tokens], device=self.device))
        if stock.shape[1] != len(request.tokens):
            raise CannotShare("it puts tokens of its own before the prompt")
        expected = F.log_softmax(stock[0, -1:], dim=-1, dtype=self.softmax_dtype)
        if not expected.isnan().any():
            self._compare(expected, self._plain_pass(request))
            self._logits_checked = True

    def _compare(self, expected: torch.Tensor, actual: torch.Tensor) -> None:
        tolerance = TOLERANCE[self.mixed_precision_dtype or self.model.dtype]
        if not torch.allclose(expected.float(), actual.float(), rtol=0, atol=tolerance):
            difference = (expected.float() - actual.float()).abs().max()
            raise CannotShare(
                f"log-probabilities of a shared computation differ by up to {difference:.2g} from those of a plain pass"
            )


def _close_process_group() -> None:
    """Join the threads of the group: left to the end of the process, they can abort it after its work is done."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _is_out_of_memory(error: Exception) -> bool:
    """Accelerators raise a class of their own; the CPU's allocator only says so."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
