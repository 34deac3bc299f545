"""hf-shared-prefix against stock hf: the same numbers for any list of requests and any model."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import Gemma2ForCausalLM, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.shared_prefix import SharedPrefixLM

from .conftest import make_model

LABELS = [" Positive", " Negative", " Very good", " Very", " Pos", " a much longer label of many tokens"]
DEMONSTRATIONS = "".join(f"Review: the lamp number {i} was warm\nSentiment:{LABELS[i % 2]}\n\n" for i in range(3))
Pair = Callable[..., tuple[HFLM, SharedPrefixLM]]


def instances(arguments: list[tuple[str, str]]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(arguments)]


def task(n: int, labels: list[str] = LABELS, prefix: str = DEMONSTRATIONS) -> list[Instance]:
    reviews = [f"the soup {i * 7919} was {'cold ' * (i % 4)}and bright" for i in range(n)]
    return instances([(f"{prefix}Review: {review}\nSentiment:", label) for review in reviews for label in labels])


def assert_same(stock: HFLM, ours: SharedPrefixLM, requests: list[Instance], atol: float = 1e-4) -> None:
    expected = stock.loglikelihood(requests, disable_tqdm=True)
    actual = ours.loglikelihood(requests, disable_tqdm=True)
    assert [a for a, _ in actual] == pytest.approx([e for e, _ in expected], abs=atol, rel=1e-5)
    assert [greedy for _, greedy in actual] == [greedy for _, greedy in expected]


def pair_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **options: Any) -> tuple[HFLM, SharedPrefixLM]:
    """Stock and ours around one model. Stock computes every request by itself: with its logits_cache it reads the wrong
    positions where one request's context contains part of another's continuation (lm-eval 0.4.13)."""
    ours = {"max_batch_tokens": 48, "batch_size": 8, **options}
    shared = {k: v for k, v in ours.items() if k not in ("max_batch_tokens", "batch_size")}
    stock = HFLM(model, tokenizer=tokenizer, batch_size=4, logits_cache=False, **shared)
    return stock, SharedPrefixLM(model, tokenizer=tokenizer, **ours)


@pytest.fixture(params=["gpt2", "llama", "gemma2", "cohere"])
def served(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Absolute and rotary positions, grouped heads, softcapped and scaled logits, windows longer than the prompts."""
    return make_model(request.param, len(tokenizer))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="lm_eval.proca.models")
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("lm_eval.proca")]


def count_tokens(model: PreTrainedModel, run: Callable[[], Any]) -> int:
    seen = []
    embeddings = model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].numel()))
    run()
    handle.remove()
    return sum(seen)


def test_a_task_is_scored_as_by_stock(
    served: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    assert_same(*pair_of(served, tokenizer), task(20))
    assert log() == []


texts = st.sampled_from(
    ["", "the film", "the film was", "Review: the lamp ", "\n\n", "clever and funny " * 9, DEMONSTRATIONS]
)
contexts = st.builds("".join, st.lists(texts, max_size=4)).filter(lambda text: text == "" or text.strip())
continuations = st.sampled_from([*LABELS, "\n", " the film was clever and funny", " and funny " * 20])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma3_text"])
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.tuples(contexts, continuations), min_size=1, max_size=24),
    batch_size=st.sampled_from([1, 3, "auto"]),
    max_batch_tokens=st.sampled_from([1, 20, 400]),
    max_length=st.sampled_from([100, 200]),
    bos=st.booleans(),
)
def test_any_list_of_requests_is_scored_as_by_stock(
    kind: str,
    tokenizer: PreTrainedTokenizerFast,
    requests: list[tuple[str, str]],
    batch_size: int | str,
    max_batch_tokens: int,
    max_length: int,
    bos: bool,
) -> None:
    """Empty contexts, no common prefix or several, requests twice, labels within labels, prompts longer than the window
    and prompts that must be cut."""
    model = make_model(kind, len(tokenizer))
    stock, ours = pair_of(
        model,
        tokenizer,
        batch_size=batch_size,
        max_batch_tokens=max_batch_tokens,
        max_length=max_length,
        add_bos_token=bos,
    )
    assert_same(stock, ours, instances(requests))
    assert ours._cannot_share is None
    assert ours._slides


def test_a_prefix_is_computed_once_and_labels_cost_their_own_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("llama", len(tokenizer))
    _, ours = pair_of(model, tokenizer, max_batch_tokens=256)
    requests = task(20)
    encoded = [tokenizer.encode(request.args[0]) for request in requests[:: len(LABELS)]]
    prefix = min(i for i in range(len(encoded[0])) if len({tuple(e[: i + 1]) for e in encoded}) > 1)
    labels = {tuple(tokenizer.encode(label)[:i]) for label in LABELS for i in range(1, len(tokenizer.encode(label)))}
    new = sum(len(e) - prefix + len(labels) for e in encoded)
    longest = max(len(e) for e in encoded) + max(map(len, labels))
    computed = count_tokens(model, lambda: ours.loglikelihood(requests, disable_tqdm=True))
    # The prefix comes with one whole request, and the first check with eight tokens, twice; then there is padding.
    assert computed <= 1.1 * new + longest + 2 * 8


def test_batch_size_one_computes_one_document_a_pass(tokenizer: PreTrainedTokenizerFast) -> None:
    """Scores depend on other documents only by the rounding of the prefix, which is read with one of them."""
    model = make_model("llama", len(tokenizer))
    ours = SharedPrefixLM(model, tokenizer=tokenizer, batch_size=1)
    passes = []
    handle = model.get_output_embeddings().register_forward_hook(lambda _m, _i, output: passes.append(output.shape[0]))
    together = ours.loglikelihood(task(12), disable_tqdm=True)
    handle.remove()
    assert passes == [1] * len(passes)
    assert len(passes) >= 12
    alone = ours.loglikelihood(task(12)[: 6 * len(LABELS)], disable_tqdm=True)
    assert [a for a, _ in alone] == pytest.approx([t for t, _ in together[: 6 * len(LABELS)]], abs=1e-4, rel=1e-5)
    assert [a for _, a in alone] == [t for _, t in together[: 6 * len(LABELS)]]


class Crowded:
    """A model whose forward pass fails, as a full device fails, whenever it is given more than `room` tokens."""

    def __init__(self, model: PreTrainedModel, room: int, error: Exception) -> None:
        self.refused = 0
        self._forward, self._room, self._error = model.forward, room, error
        model.forward = self  # type: ignore[method-assign]

    def __call__(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        if input_ids.numel() > self._room:
            self.refused += 1
            raise self._error
        return self._forward(input_ids, **kwargs)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["accelerator", "cpu"],
)
def test_a_full_memory_halves_the_pass_and_is_not_remembered(
    tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]], error: Exception
) -> None:
    model = make_model("llama", len(tokenizer))
    stock, ours = pair_of(model, tokenizer, max_batch_tokens=512, batch_size="auto")
    requests = task(20)
    expected = [score for score, _ in stock.loglikelihood(requests, disable_tqdm=True)]
    crowd = Crowded(model, 130, error)
    scores = [score for score, _ in ours.loglikelihood(requests, disable_tqdm=True)]
    assert crowd.refused
    assert scores == pytest.approx(expected, abs=1e-4, rel=1e-5)
    assert all("goes on with passes of" in line for line in log())
    crowd._room = 10**6  # the memory is free again: the next call makes large passes and shares
    refused, lines = crowd.refused, len(log())
    ours.loglikelihood(requests, disable_tqdm=True)
    assert (crowd.refused, len(log()), ours._cannot_share) == (refused, lines, None)


def test_passes_are_as_large_as_before_once_the_memory_is_free_again(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("llama", len(tokenizer))
    _, ours = pair_of(model, tokenizer, max_batch_tokens=512, batch_size="auto")
    crowd = Crowded(model, 10**6, torch.OutOfMemoryError("CUDA out of memory"))
    sizes: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _m, inputs, _o: sizes.append(inputs[0].numel()))
    largest = []
    for room in (10**6, 130, 10**6):
        crowd._room = room
        sizes.clear()
        ours.loglikelihood(task(20), disable_tqdm=True)
        largest.append(max(sizes))
    assert largest[1] <= 130 < largest[0] == largest[2]


@pytest.mark.parametrize("sick", [0, 7, 19])  # among them the document whose scores are checked
def test_a_document_without_finite_scores_leaves_its_neighbours_theirs(
    tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]], sick: int
) -> None:
    model = make_model("llama", len(tokenizer))
    prompts = [f"{DEMONSTRATIONS}Review: the soup {i} was {'cold ' * (i % 4)}\nSentiment:" for i in range(20)]
    healthy = set(tokenizer.encode("".join(prompts)))
    prompts[sick] = prompts[sick].replace("soup", "@ZQ@")
    (own, *_) = set(tokenizer.encode(prompts[sick])) - healthy
    requests = instances([(prompt, label) for prompt in prompts for label in LABELS[:2]])
    model.get_input_embeddings().weight.data[own] = torch.nan
    stock, ours = pair_of(model, tokenizer, max_batch_tokens=512, batch_size="auto")
    expected = [score for score, _ in stock.loglikelihood(requests, disable_tqdm=True)]
    assert [i // 2 for i, score in enumerate(expected) if math.isnan(score)] == [sick, sick]
    scores = [score for score, _ in ours.loglikelihood(requests, disable_tqdm=True)]
    assert scores == pytest.approx(expected, abs=1e-4, rel=1e-5, nan_ok=True)
    assert not log()


def test_a_request_that_no_memory_fits_ends_in_the_own_error(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("llama", len(tokenizer))
    _, ours = pair_of(model, tokenizer)
    Crowded(model, 20, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        ours.loglikelihood(task(4), disable_tqdm=True)


def test_an_error_after_a_good_start_is_not_remembered(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("llama", len(tokenizer))
    stock, ours = pair_of(model, tokenizer)
    expected = [score for score, _ in stock.loglikelihood(task(20), disable_tqdm=True)]
    plain, calls = model.forward, itertools.count()

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 8:
            raise RuntimeError("a passing fault")
        return plain(*args, **kwargs)

    monkeypatch.setattr(model, "forward", fails_once)
    scores = [score for score, _ in ours.loglikelihood(task(20), disable_tqdm=True)]
    assert scores == pytest.approx(expected, abs=1e-4, rel=1e-5)
    assert ours._cannot_share is None


def test_logits_are_computed_only_where_needed(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("llama", len(tokenizer))
    _, ours = pair_of(model, tokenizer, max_batch_tokens=256)
    logits = []
    handle = model.get_output_embeddings().register_forward_hook(
        lambda _m, _i, output: logits.append(output[..., 0].numel())
    )
    ours.loglikelihood(task(24, [" Positive", " Negative"]), disable_tqdm=True)
    handle.remove()
    assert 24 <= sum(logits) <= 3 * 24  # a little more than one for each document, as all rows of a pass share places


def test_prompts_that_had_to_be_cut_are_counted(
    tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    stock, ours = pair_of(make_model("gpt2", len(tokenizer)), tokenizer, max_length=40)
    requests = instances([("the film " * n, " Positive") for n in (1, 2, 60, 80)])
    assert_same(stock, ours, requests)
    assert log() == ["2 of 4 prompts were longer than the model's 40 tokens and lost their beginning."]
    answers = ours.loglikelihood(requests, disable_tqdm=True)
    assert [answer.truncated for answer in answers] == [False, False, True, True]


class DeafToTheCache(GPT2LMHeadModel):
    def forward(self, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class DeafToTheMask(GPT2LMHeadModel):
    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class DeafToPositions(GPT2LMHeadModel):
    def forward(self, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class AllLogits(GPT2LMHeadModel):
    def forward(self, *args: Any, logits_to_keep: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Strict(GPT2LMHeadModel):
    def forward(self, input_ids: torch.Tensor) -> Any:
        return super().forward(input_ids)


@pytest.mark.parametrize("kind", [DeafToTheCache, DeafToTheMask, DeafToPositions, AllLogits, Strict])
@pytest.mark.parametrize("prefix", ["", DEMONSTRATIONS])
def test_a_model_that_does_not_do_as_asked_is_scored_by_stock(
    kind: type[GPT2LMHeadModel], prefix: str, tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    model = kind(make_model("gpt2", len(tokenizer)).config).eval()
    stock, ours = pair_of(model, tokenizer)
    for _ in range(2):
        assert_same(stock, ours, task(12, prefix=prefix), atol=1e-5)
    if prefix or kind is not DeafToTheCache:
        (line,) = log()
        assert line.startswith("hf-shared-prefix scores like hf: ")


@pytest.mark.parametrize("kind", ["llama4_text", "bloom", "gpt_neo", "mamba"])
def test_models_of_another_kind_are_scored_by_stock(
    kind: str, tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    """Attention within chunks, attention biased by distance, local attention, a recurrent state."""
    stock, ours = pair_of(make_model(kind, len(tokenizer)), tokenizer)
    for _ in range(2):
        assert_same(stock, ours, task(12), atol=1e-5)
    (line,) = log()
    assert line.startswith("hf-shared-prefix scores ")
    assert "like hf: " in line


@pytest.mark.parametrize(("few", "prefix"), [(2, ""), (4, ""), (1, DEMONSTRATIONS)])
def test_rows_longer_than_any_before_are_checked_again(
    few: int, prefix: str, tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    """Local attention of GPT-Neo counts places in the row: right as long as the row lies within its window."""
    model = make_model("gpt_neo", len(tokenizer), window_size=128 if prefix else 64)
    stock, ours = pair_of(model, tokenizer, max_batch_tokens=512, batch_size=64)
    assert_same(stock, ours, task(few, LABELS[:2], prefix), atol=1e-5)
    assert log() == []
    for _ in range(2):
        assert_same(stock, ours, task(120, LABELS[:2], prefix), atol=1e-5)
    (line,) = log()
    assert line.startswith("hf-shared-prefix scores like hf: log-probabilities of a shared computation differ by ")


def test_a_prompt_that_shares_nothing_does_not_vouch_for_others(
    tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    stock, ours = pair_of(
        make_model("gpt_neo", len(tokenizer), window_size=24), tokenizer, max_batch_tokens=512, batch_size=64
    )
    last = "the film was clever and funny"
    alike = [f"Q film {i} was {'clever and funny ' * 3}" for i in range(4)]
    assert max([*alike, last], key=tokenizer.encode) == last
    assert_same(stock, ours, instances([(prompt, label) for prompt in (*alike, last) for label in LABELS[:1]]))
    assert len(log()) == 1


def test_checks_become_rare(tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]) -> None:
    """Calls of all sizes and prefixes, in any order; the same calls again need no check, and count what is not one."""
    model = make_model("llama", len(tokenizer))
    _, ours = pair_of(model, tokenizer, max_batch_tokens=256, batch_size="auto")
    sizes = random.Random(0).choices(range(1, 40), k=64)
    calls = [task(size, LABELS[:3], DEMONSTRATIONS[: 40 * (size % 3)]) for size in sizes]
    passes: list[list[int]] = []
    model.get_input_embeddings().register_forward_hook(lambda *_: passes[-1].append(1))
    for requests in (*calls, *calls):
        passes.append([])
        ours.loglikelihood(requests, disable_tqdm=True)
    extra = [len(first) - len(second) for first, second in zip(passes[:64], passes[64:], strict=True)]
    assert min(extra) == 0 < sum(extra) <= 3 * math.log2(64)
    assert sum(extra[32:]) <= 2
    assert log() == []


@pytest.mark.parametrize(
    ("kind", "window", "prefix"),
    [
        *((kind, 24, DEMONSTRATIONS) for kind in ("gemma3_text", "gemma2", "mistral", "phi3", "qwen2", "cohere2")),
        *(("gpt_oss", 24, DEMONSTRATIONS), ("gemma3_text", 8, ""), ("mistral", 8, "")),
    ],
)
def test_prompts_longer_than_the_window_are_shared(
    kind: str, window: int, prefix: str, tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    """Windows in some layers or in all; rotations by kind of layer, softcapped scores, attention sinks, experts."""
    model, requests = make_model(kind, len(tokenizer), sliding_window=window), task(12, prefix=prefix)
    stock, packed = pair_of(model, tokenizer, batch_size="auto", max_batch_tokens=128)
    expected: list[tuple[float, bool]] = []
    one_by_one = count_tokens(model, lambda: expected.extend(stock.loglikelihood(requests, disable_tqdm=True)))
    for ours in (packed, SharedPrefixLM(model, tokenizer=tokenizer, batch_size=1)):
        actual: list[tuple[float, bool]] = []
        tokens = count_tokens(model, lambda lm=ours, a=actual: a.extend(lm.loglikelihood(requests, disable_tqdm=True)))
        assert tokens < one_by_one / 2
        assert [a for a, _ in actual] == pytest.approx([e for e, _ in expected], abs=1e-4, rel=1e-5)
        assert [greedy for _, greedy in actual] == [greedy for _, greedy in expected]
    assert log() == []
    blind, _ = pair_of(make_model(kind, len(tokenizer), sliding_window=512), tokenizer)
    without = [score for score, _ in blind.loglikelihood(requests[:12], disable_tqdm=True)]
    assert without != pytest.approx([e for e, _ in expected[:12]], abs=0.1), "the window matters in these prompts"


class DeafToWindows(Gemma2ForCausalLM):
    def forward(self, *args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        mask = attention_mask["full_attention"] if isinstance(attention_mask, dict) else attention_mask
        return super().forward(*args, attention_mask=mask, **kwargs)


class OneMask(Gemma2ForCausalLM):
    def forward(self, *args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
        assert not isinstance(attention_mask, dict), "one mask, please"
        return super().forward(*args, attention_mask=attention_mask, **kwargs)


@pytest.mark.parametrize("kind", [DeafToWindows, OneMask])
def test_a_model_that_takes_no_windows_shares_within_its_own(
    kind: type[Gemma2ForCausalLM], tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    model = kind(make_model("gemma2", len(tokenizer), sliding_window=32).config).eval()
    stock, ours = pair_of(model, tokenizer, max_batch_tokens=256)
    short, long = task(30, LABELS[:3], prefix=""), task(3)
    assert_same(stock, ours, [*short, *long])
    (line,) = log()
    assert line.startswith("hf-shared-prefix scores prompts of more than 32 tokens like hf: ")
    one_by_one = count_tokens(model, lambda: stock.loglikelihood(short, disable_tqdm=True))
    assert count_tokens(model, lambda: ours.loglikelihood(short, disable_tqdm=True)) < one_by_one / 2


def test_eager_attention_is_served(tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]) -> None:
    assert_same(*pair_of(make_model("llama", len(tokenizer), attn_implementation="eager"), tokenizer), task(12))
    assert log() == []


@pytest.mark.parametrize(
    ("options", "atol"), [({"softmax_dtype": "float64"}, 1e-4), ({"mixed_precision_dtype": "float16"}, 0.5)]
)
def test_numeric_options_mean_what_they_mean_in_stock(
    options: dict[str, str], atol: float, tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    stock, ours = pair_of(make_model("gpt2", len(tokenizer)), tokenizer, **options)
    requests = task(8)
    expected = [value for value, _ in stock.loglikelihood(requests, disable_tqdm=True)]
    actual = [value for value, _ in ours.loglikelihood(requests, disable_tqdm=True)]
    assert actual == pytest.approx(expected, abs=atol)
    assert log() == []


def test_without_logits_cache_nothing_is_shared(
    tokenizer: PreTrainedTokenizerFast, log: Callable[[], list[str]]
) -> None:
    stock, ours = pair_of(make_model("gpt2", len(tokenizer)), tokenizer)
    ours.logits_cache = False
    assert_same(stock, ours, task(4), atol=1e-6)
    assert log() == ["hf-shared-prefix scores like hf: logits_cache=False asks to compute every request by itself."]


def test_what_is_left_to_stock_on_a_cpu_stays_within_memory(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With batch_size=auto, stock takes 64 rows however long they are, until an error that never comes on a CPU."""
    most = 1000 * len(tokenizer)
    monkeypatch.setattr("lm_eval_proca.models.shared_prefix.MAX_LOGITS", most)
    stock, ours = pair_of(make_model("gpt2", len(tokenizer)), tokenizer, batch_size="auto")
    ours.logits_cache = False
    sizes = []
    head = ours.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.numel()))
    answers = ours.loglikelihood(task(40), disable_tqdm=True)
    handle.remove()
    assert max(sizes) <= most
    assert len(sizes) < len(answers)  # and not one by one
    assert_same(stock, ours, task(40), atol=1e-5)


def test_answers_reach_the_request_cache(tokenizer: PreTrainedTokenizerFast) -> None:
    _, ours = pair_of(make_model("gpt2", len(tokenizer)), tokenizer)
    cached = {}

    class Hook:
        def add_partial(self, method: str, arguments: tuple[str, str], answer: tuple[float, bool]) -> None:
            cached[method, arguments] = answer

    ours.set_cache_hook(Hook())
    requests = task(6)
    answers = ours.loglikelihood(requests, disable_tqdm=True)
    assert cached == {("loglikelihood", r.args): answer for r, answer in zip(requests, answers, strict=True)}


def test_rolling_loglikelihood_is_stock(tokenizer: PreTrainedTokenizerFast) -> None:
    stock, ours = pair_of(make_model("gpt2", len(tokenizer)), tokenizer, max_length=32)
    requests = [Instance("loglikelihood_rolling", {}, (DEMONSTRATIONS,), 0)]
    assert ours.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(
        stock.loglikelihood_rolling(requests, disable_tqdm=True), abs=1e-3
    )


def test_bad_input_ends_in_a_sentence(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("gpt2", len(tokenizer))
    with pytest.raises(ModelError, match="max_batch_tokens is 0"):
        SharedPrefixLM(model, tokenizer=tokenizer, max_batch_tokens=0)
    ours = SharedPrefixLM(model, tokenizer=tokenizer, max_length=8)
    with pytest.raises(ModelError, match="at most 8 long"):
        ours.loglikelihood(instances([("the film", " and funny" * 30)]), disable_tqdm=True)
