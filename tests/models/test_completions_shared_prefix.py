"""local-completions-shared-prefix against a real HTTP server with a tiny model, and all that can go wrong with one.

The server here speaks as much of /v1/completions as stock and ours use; tests/engines has the same with `vllm serve`.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from lm_eval_proca.errors import ModelError

from .conftest import make_model
from .test_probes import asked, plain
from .test_shared_prefix import instances, task

pytest.importorskip("tenacity", reason="lm-eval's API models need `pip install 'lm-eval[api]'`")

LABELS = [" Positive", " Negative", " Negative Positive"]  # one, one and two tokens


class Server(ThreadingHTTPServer):
    """A model behind HTTP. `kind` is what kind of server it is, `dies_after` how many requests it answers, `spoil` what
    it makes of all answers after the first `good`."""

    daemon_threads = True

    def __init__(
        self,
        stock: HFLM,
        kind: str = "vllm",
        dies_after: int | None = None,
        spoil: Callable[[dict[str, Any]], Any] = lambda answer: answer,
        good: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.stock, self.kind, self.dies_after, self.spoil, self.good = stock, kind, dies_after, spoil, good
        self.received: list[dict[str, Any]] = []
        self.bytes_received = 0
        self.lock = threading.Lock()

    def handle_error(self, *args: Any) -> None:
        """Clients that hang up are no news here."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/completions"

    def asked_for_next_tokens(self) -> list[dict[str, Any]]:
        return [body for body in self.received if "logprob_token_ids" in body]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, body: Any, status: int = 200) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if content.startswith(b"<") else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.server.kind != "plain":
            self.answer({"data": [{"id": "tiny", "owned_by": "vllm"}]})
        else:
            self.answer({"error": "not here"}, 404)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(content)
        with self.server.lock:
            if self.server.dies_after is not None and len(self.server.received) >= self.server.dies_after:
                self.connection.shutdown(socket.SHUT_RDWR)  # not a word, as of a process that was killed
                return
            self.server.received.append(body)
            self.server.bytes_received += len(content)
            if body["model"] != "tiny":
                self.answer({"error": {"message": "The model does not exist.", "code": 404}}, 404)
            elif self.server.kind == "strict" and "logprob_token_ids" in body:
                self.answer({"error": {"message": "Unknown field:\nlogprob_token_ids"}}, 400)
            elif self.server.kind == "few" and len(body.get("logprob_token_ids", ())) > 40:
                self.answer({"error": {"message": "logprob_token_ids: at most 40"}}, 400)
            elif self.server.kind == "broken":
                self.answer({"error": {"message": "CUDA error"}}, 500)
            elif self.server.kind == "locked":
                self.answer({"error": "Unauthorized"}, 401)
            else:
                prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
                choices = [self.choice(i, prompt, body) for i, prompt in enumerate(prompts)]
                answer = {"choices": choices}
                self.answer(self.server.spoil(answer) if len(self.server.received) > self.server.good else answer)

    def choice(self, index: int, prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        if self.server.kind == "silent":
            return {"index": index, "text": "", "logprobs": None}
        if "logprobs" not in body:  # generation
            return {"index": index, "text": " warm"}
        with torch.no_grad():
            rows = torch.log_softmax(self.server.stock._model_call(torch.tensor([prompt]))[0], dim=-1)
        best = int(rows[-1].argmax())
        if body.get("echo"):
            values = [None, *(float(row[token]) for row, token in zip(rows, prompt[1:], strict=False))]
            tops = [None, *({"best": float(row.max())} for row in rows)]
            logprobs = {"token_logprobs": [*values, float(rows[-1][best])], "top_logprobs": tops}
        else:
            wanted = [best, *(body["logprob_token_ids"] if self.server.kind != "plain" else [])]
            names = {token: f"token_id:{token}" if self.server.kind != "plain" else f"word{token}" for token in wanted}
            logprobs = {"top_logprobs": [{names[token]: float(rows[-1][token]) for token in wanted}]}
        return {"index": index, "text": "", "logprobs": logprobs}


@pytest.fixture(scope="module")
def stock(tokenizer: PreTrainedTokenizerFast) -> HFLM:
    return HFLM(make_model("gpt2", len(tokenizer)), tokenizer=tokenizer, batch_size=4, logits_cache=False)


@pytest.fixture
def serve(stock: HFLM) -> Iterator[Any]:
    servers = []

    def start(*args: Any, **kwargs: Any) -> Server:
        servers.append(Server(stock, *args, **kwargs))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def connect(tiny_gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from lm_eval_proca.models.completions_shared_prefix import CompletionsSharedPrefixLM

    def start(url: str, **options: Any) -> Any:
        arguments = {
            "model": "tiny",
            "tokenizer": str(tiny_gpt2),
            "tokenizer_backend": "huggingface",
            "max_length": 257,
        }
        return CompletionsSharedPrefixLM(base_url=url, max_retries=1, **{**arguments, **options})

    return start


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, logger="lm_eval.proca.models")
    return lambda level=logging.WARNING: [
        record.getMessage()
        for record in caplog.records
        if record.name == "lm_eval.proca.models" and record.levelno >= level
    ]


def assert_same(stock: HFLM, ours: Any, requests: list[Any]) -> None:
    expected = stock.loglikelihood(requests, disable_tqdm=True)
    actual = ours.loglikelihood(requests, disable_tqdm=True)
    assert [a for a, _ in actual] == pytest.approx([e for e, _ in expected], abs=1e-4, rel=1e-5)
    assert [greedy for _, greedy in actual] == [greedy for _, greedy in expected]


@pytest.mark.parametrize("options", [{}, {"num_concurrent": 3}, {"batch_size": 4}])
def test_scores_are_those_of_the_model_behind_the_server(
    serve: Any, connect: Any, stock: HFLM, log: Any, options: dict[str, int]
) -> None:
    assert_same(stock, connect(serve().url, **options), task(6, LABELS))
    assert log() == []


def test_one_request_for_a_document_and_the_log_counts_them(serve: Any, connect: Any, log: Any) -> None:
    server = serve()
    ours = connect(server.url)
    ours.loglikelihood(task(1, LABELS[:2]), disable_tqdm=True)
    server.received, server.bytes_received = [], 0
    ours.loglikelihood(task(7, LABELS[:2]), disable_tqdm=True)
    assert len(server.received) == 7
    counted = f"local-completions-shared-prefix: 7 HTTP requests with 7 prompts, {server.bytes_received} bytes sent, "
    assert any(line.startswith(counted) for line in log(logging.INFO))


@pytest.mark.parametrize(("kind", "size"), [("vllm", 126), ("few", 30)])
def test_probes_travel_with_the_labels_as_many_as_the_server_takes(
    serve: Any, connect: Any, stock: HFLM, kind: str, size: int
) -> None:
    server = serve(kind)
    ours = connect(server.url)
    ours.loglikelihood(asked(1, LABELS[:2]), disable_tqdm=True)
    server.received = []
    requests = asked(7, LABELS[:2])
    answers = ours.loglikelihood(requests, disable_tqdm=True)
    assert len(server.received) == 7
    for request, answer in zip(requests[::2], answers[::2], strict=True):
        assert len(answer.representation.probes) == size
        expected = plain(stock, request, answer.representation.probes)
        np.testing.assert_allclose(answer.values[0], expected, atol=4e-3)


def test_prompts_that_want_the_same_tokens_travel_together(serve: Any, connect: Any) -> None:
    server = serve()
    ours = connect(server.url, batch_size=4)
    ours.loglikelihood(task(1, LABELS), disable_tqdm=True)
    server.received = []
    ours.loglikelihood(task(6, LABELS), disable_tqdm=True)
    sizes: dict[tuple[int, ...], list[int]] = {}
    for body in server.received:
        sizes.setdefault(tuple(body["logprob_token_ids"]), []).append(len(body["prompt"]))
    assert {tuple(sorted(several)) for several in sizes.values()} == {(2, 4)}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("plain", "the server does not return the log-probabilities of chosen tokens, as vLLM does from 0.26 on"),
        ("strict", "the server refuses such requests (status 400, Unknown field: logprob_token_ids)"),
    ],
)
def test_a_server_of_another_kind_is_asked_as_stock_asks(
    serve: Any, connect: Any, stock: HFLM, log: Any, kind: str, reason: str
) -> None:
    server = serve(kind)
    ours = connect(server.url)
    for _ in range(2):
        assert_same(stock, ours, task(3, LABELS))
    assert log() == [f"local-completions-shared-prefix scores like local-completions: {reason}."]
    assert len(server.asked_for_next_tokens()) <= 3  # of the first check; then never again


def test_no_server(connect: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1/completions"
    with pytest.raises(ModelError) as error:
        connect(url)
    assert str(error.value) == (
        f"There is no server at {url} (Connection refused): start it, or correct base_url in --model_args."
    )


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/v1/completions", "127.0.0.1:8000/v1", "http://"])
def test_a_host_that_is_none(connect: Any, url: str) -> None:
    with pytest.raises(ModelError, match=r"^There is no server at \S+ \(.+\): start it, or correct base_url"):
        connect(url)


def test_no_url(connect: Any) -> None:
    with pytest.raises(ModelError, match="needs base_url in --model_args"):
        connect("")


def test_a_wrong_model_name_is_told_before_its_tokenizer_is_looked_for(serve: Any, connect: Any) -> None:
    url = serve().url
    with pytest.raises(ModelError) as error:
        connect(url, model="tinny", tokenizer=None)
    assert str(error.value) == (
        f"The server at {url} does not serve the model 'tinny'; it serves 'tiny': correct model or base_url in "
        "--model_args."
    )


def test_a_wrong_model_name_for_a_server_that_has_no_list(serve: Any, connect: Any) -> None:
    ours = connect(serve("plain").url, model="tinny")
    with pytest.raises(ModelError, match="does not serve the model 'tinny': correct model or base_url"):
        ours.loglikelihood(task(1), disable_tqdm=True)


@pytest.mark.parametrize("tokenized", [True, False])
def test_a_server_without_log_probabilities(serve: Any, connect: Any, tokenized: bool) -> None:
    ours = connect(serve("silent").url, tokenized_requests=tokenized)
    with pytest.raises(ModelError, match=r"returns no log-probabilities \(logprobs=1\), and classification needs them"):
        ours.loglikelihood(task(1), disable_tqdm=True)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("broken", r"stopped answering after 0 requests \(status 500, CUDA error\): start it again"),
        ("locked", r"refuses requests: status 401, Unauthorized\.$"),
    ],
)
def test_a_server_that_answers_with_an_error(serve: Any, connect: Any, kind: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        connect(serve(kind).url).loglikelihood(task(1), disable_tqdm=True)


@pytest.mark.parametrize("options", [{}, {"num_concurrent": 3}])
def test_a_server_that_dies_in_the_middle_and_what_was_answered_is_kept(
    serve: Any, connect: Any, stock: HFLM, tmp_path: Path, options: dict[str, int]
) -> None:
    requests = task(12, LABELS[:2])
    server = serve(dies_after=10)
    with pytest.raises(ModelError) as error:
        CachingLM(connect(server.url, **options), str(tmp_path / "cache.db")).loglikelihood(requests)
    assert str(error.value).startswith(f"The server at {server.url} stopped answering after ")
    assert str(error.value).endswith(
        "): start it again and repeat the command; --use_cache keeps the answers for that."
    )

    again = serve()
    repeated = CachingLM(connect(again.url, **options), str(tmp_path / "cache.db")).loglikelihood(requests)
    assert [value for value, _ in repeated] == pytest.approx(
        [value for value, _ in stock.loglikelihood(requests, disable_tqdm=True)], abs=1e-4
    )
    prompts = {tuple(prompt) for body in again.asked_for_next_tokens() for prompt in body["prompt"]}
    assert len(prompts) < 12


def test_a_server_that_dies_while_stock_asks(serve: Any, connect: Any) -> None:
    for options in ({}, {"num_concurrent": 2}):
        ours = connect(serve("strict", dies_after=3).url, **options)
        with pytest.raises(ModelError, match="stopped answering after"):
            ours.loglikelihood(task(4, LABELS), disable_tqdm=True)


def test_generation_with_a_dead_server(serve: Any, connect: Any) -> None:
    ours = connect(serve(dies_after=0).url)
    requests = instances([("the soup", {"until": ["\n"]})])  # type: ignore[list-item]
    with pytest.raises(ModelError, match="stopped answering after 0 requests"):
        ours.generate_until(requests)


def each_choice(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """An answer with every choice changed in place, by a lambda whose value does not matter."""
    return lambda answer: [change(choice) for choice in answer["choices"]] and answer


def without_numbers(choice: dict[str, Any]) -> None:
    found = choice["logprobs"]
    found["top_logprobs"] = [None if top is None else dict.fromkeys(top) for top in found["top_logprobs"]]
    if "token_logprobs" in found:
        found["token_logprobs"] = [None for _ in found["token_logprobs"]]


NOT_JSON = "sent an answer that is not JSON"
NOT_COMPLETIONS = "sent an answer that does not hold one choice for each prompt"
NO_NUMBERS = r"returns no log-probabilities \(logprobs=1\), and classification needs them"
SPOILED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a page": (lambda answer: b"<html>\nPlease\nlog in</html>", NOT_JSON),
    "cut": (lambda answer: json.dumps(answer)[:-9].encode(), NOT_JSON),
    "null": (lambda answer: None, NOT_COMPLETIONS),
    "a list": (lambda answer: [answer["choices"]], NOT_COMPLETIONS),
    "another object": (lambda answer: {"object": "list"}, NOT_COMPLETIONS),
    "no choices": (lambda answer: {"choices": None}, NOT_COMPLETIONS),
    "too few choices": (lambda answer: {"choices": answer["choices"][:-1]}, NOT_COMPLETIONS),
    "too many choices": (lambda answer: {"choices": answer["choices"] * 2}, NOT_COMPLETIONS),
    "choices that are no objects": (lambda answer: {"choices": [1 for _ in answer["choices"]]}, NOT_COMPLETIONS),
    "choices without an index": (each_choice(lambda choice: choice.pop("index")), NOT_COMPLETIONS),
    "an index that is none": (each_choice(lambda choice: choice.update(index="first")), NOT_COMPLETIONS),
}
WITHOUT_NUMBERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no log-probabilities": (each_choice(lambda choice: choice.pop("logprobs")), NO_NUMBERS),
    "null": (each_choice(lambda choice: choice.update(logprobs=None)), NO_NUMBERS),
    "a list": (each_choice(lambda choice: choice.update(logprobs=[1.0])), NO_NUMBERS),
    "null for tokens": (each_choice(without_numbers), NO_NUMBERS),
}


@pytest.mark.parametrize("options", [{}, {"num_concurrent": 3}], ids=["one by one", "concurrent"])
@pytest.mark.parametrize("kind", ["vllm", "strict"])
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [*SPOILED.values(), *WITHOUT_NUMBERS.values()],
    ids=[*SPOILED, *(f"log-probabilities: {name}" for name in WITHOUT_NUMBERS)],
)
def test_an_answer_that_makes_no_sense_ends_in_a_sentence(
    serve: Any, connect: Any, spoil: Any, sentence: str, kind: str, options: dict[str, int], caplog: Any
) -> None:
    """In the middle of a run; a strict server is asked as stock asks."""
    server = serve(kind, spoil=spoil, good=8)
    ours = connect(server.url, batch_size=2, **options)
    with pytest.raises(ModelError, match=f"^The server at {server.url} {sentence}") as error:
        ours.loglikelihood(task(8, LABELS), disable_tqdm=True)
    assert "\n" not in str(error.value)
    if options:
        gc.collect()  # when asyncio would log the tracebacks of tasks whose errors nobody has seen
    assert "asyncio" not in {record.name for record in caplog.records}


@pytest.mark.parametrize("options", [{}, {"num_concurrent": 3}], ids=["one by one", "concurrent"])
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [*SPOILED.values(), (each_choice(lambda choice: choice.pop("text")), NOT_COMPLETIONS)],
    ids=[*SPOILED, "no text"],
)
def test_a_generation_that_makes_no_sense_ends_in_a_sentence(
    serve: Any, connect: Any, spoil: Any, sentence: str, options: dict[str, int]
) -> None:
    requests = instances([(f"the soup {i}", {"until": ["\n"]}) for i in range(8)])  # type: ignore[misc]
    assert connect(serve().url, batch_size=2, **options).generate_until(requests) == [" warm"] * 8
    server = serve(spoil=spoil, good=2)
    with pytest.raises(ModelError, match=f"^The server at {server.url} {sentence}") as error:
        connect(server.url, batch_size=2, **options).generate_until(requests)
    assert "\n" not in str(error.value)


def test_a_server_that_scores_no_prompts_is_not_taken_for_one_that_is_sure(serve: Any, connect: Any) -> None:
    """Without echo stock would add up nothing: a log-probability of 0 for every label."""

    def last_only(choice: dict[str, Any]) -> None:
        choice["logprobs"] = {name: values[-1:] for name, values in choice["logprobs"].items()}

    ours = connect(serve("strict", spoil=each_choice(last_only)).url)
    with pytest.raises(ModelError, match=r"does not score the tokens of a prompt \(echo=True\)"):
        ours.loglikelihood(task(2, LABELS), disable_tqdm=True)
