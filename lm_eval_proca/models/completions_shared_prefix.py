"""local-completions-shared-prefix: the same questions as `vllm-shared-prefix`, to a server over HTTP.

vLLM's `/v1/completions` takes `logprob_token_ids` from version 0.26 on. A server that does not is asked as stock
`local-completions` asks, and one log line says so. What can go wrong with a server ends in one sentence.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import requests
from aiohttp import ClientError, ContentTypeError
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI
from requests.adapters import HTTPAdapter

from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.engine import EngineLM, Prediction, Question
from lm_eval_proca.models.probes import MAX_TOKENS
from lm_eval_proca.models.sharing import CannotShare, LogLikelihood, TokenizedRequest, logger

NOT_JSON = (json.JSONDecodeError, requests.exceptions.JSONDecodeError, UnicodeDecodeError, ContentTypeError)


class Exchange(NamedTuple):
    """What a request was answered with, and the bytes that went over the wire."""

    predictions: Sequence[Prediction]
    sent: int
    received: int


@register_model("local-completions-shared-prefix")
class CompletionsSharedPrefixLM(EngineLM, LocalCompletionsAPI):
    """LocalCompletionsAPI that asks for the tokens behind a prompt. Takes all arguments of LocalCompletionsAPI.

    `num_concurrent` requests are under way at a time; each holds up to `batch_size` prompts that want the same tokens.
    """

    NAME, STOCK = "local-completions-shared-prefix", "local-completions"

    def __init__(self, base_url: str | None = None, **kwargs: Any) -> None:
        if not base_url:
            raise ModelError(f"{self.NAME} needs base_url in --model_args, e.g. http://127.0.0.1:8000/v1/completions.")
        model = kwargs.get("model") or kwargs.get("pretrained")
        served = _served_models(base_url, kwargs.get("header"), kwargs.get("verify_certificate", True))
        if served and model not in served:  # before a tokenizer of that name is looked for
            raise _wrong_model(base_url, model, served)
        super().__init__(base_url=base_url, **kwargs)
        self._longest_input = self.max_length
        self._served = served
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=max(1, self._concurrent)))
        self._requests_answered = 0

    def _stock(self, requests: list[TokenizedRequest], disable_tqdm: bool, **options: Any) -> list[LogLikelihood]:
        with self._in_a_sentence():
            return super()._stock(requests, disable_tqdm, **options)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        with self._in_a_sentence():
            return super().generate_until(requests, disable_tqdm=disable_tqdm)

    async def get_batched_requests(self, *args: Any, **kwargs: Any) -> list[Any]:
        # The first failure ends the run in a sentence; asyncio would print a traceback for each of the others.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await super().get_batched_requests(*args, **kwargs)

    async def amodel_call(self, session: Any, sem: Any, messages: Any, **kwargs: Any) -> Any:
        answers = await super().amodel_call(session, sem, messages, **kwargs)
        if len(answers) != len(messages):  # stock would give answers to the wrong prompts
            raise self._not_completions(answers)
        return answers

    def parse_logprobs(self, outputs: Any, tokens: Any, ctxlens: Any, **kwargs: Any) -> list[LogLikelihood]:  # type: ignore[override]
        answer = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs
        choices = self._choices(answer, len(ctxlens))
        try:
            scored = [len(choice["logprobs"]["token_logprobs"]) for choice in choices]
            answers = super().parse_logprobs(outputs=answer, ctxlens=ctxlens)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"The server at {self.base_url} returns no log-probabilities (logprobs=1), and classification needs "
                "them: start it so that it does, or use a server that has them, such as `vllm serve`."
            ) from error
        if self.tokenized_requests and any(n <= len(prompt) for n, prompt in zip(scored, tokens, strict=True)):
            raise ModelError(
                f"The server at {self.base_url} does not score the tokens of a prompt (echo=True), and classification "
                "needs that: use a server that does, such as `vllm serve`."
            )
        return answers

    def parse_generations(self, outputs: Any, contexts: Sequence[Any] | None = None, **kwargs: Any) -> list[str]:  # type: ignore[override]
        choices = self._choices(outputs, None if contexts is None else len(contexts))
        if not all("text" in choice for choice in choices):
            raise self._not_completions(outputs)
        return [choice["text"] for choice in choices]

    def _choices(self, answer: Any, prompts: int | None) -> list[dict[str, Any]]:
        """The choices of an answer in the order of its prompts, as many as there are prompts where that is known."""
        with suppress(KeyError, TypeError):
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            if [choice["index"] for choice in choices] == list(range(len(choices) if prompts is None else prompts)):
                return choices
        raise self._not_completions(answer)

    @contextmanager
    def _in_a_sentence(self) -> Iterator[None]:
        """What stock's own requests end in."""
        try:
            yield
        except (requests.RequestException, ClientError, asyncio.TimeoutError, *NOT_JSON) as error:
            raise self._failed(error) from error

    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        if not self.tokenized_requests:
            raise CannotShare("tokenized_requests=False asks to send text, and text cannot be continued by tokens")
        batches = _batches(asked, max(1, self._batch_size))
        concurrent = max(1, self._concurrent)
        waiting = iter(batches)
        under_way: dict[Future[Exchange], list[int]] = {}
        sent = received = 0
        with ThreadPoolExecutor(concurrent) as pool:
            try:
                while True:
                    # Few ahead of those under way: an answer that nobody has read yet takes room.
                    for places in islice(waiting, 2 * concurrent - len(under_way)):
                        under_way[pool.submit(self._ask, [asked[place] for place in places])] = places
                    if not under_way:
                        break
                    for answer in wait(under_way, return_when=FIRST_COMPLETED).done:
                        places, found = under_way.pop(answer), answer.result()
                        self._requests_answered += 1
                        sent, received = sent + found.sent, received + found.received
                        yield from zip(places, found.predictions, strict=True)
            finally:
                pool.shutdown(cancel_futures=True)
        logger.info(
            f"{self.NAME}: {len(batches)} HTTP requests with {len(asked)} prompts, {sent} bytes sent, {received} "
            "received."
        )

    @cached_property
    def _most_tokens(self) -> int:
        """The server is asked: one that is named too many tokens refuses, or leaves some out."""
        for size in (MAX_TOKENS, MAX_TOKENS // 2, MAX_TOKENS // 4):
            trial = Question(np.zeros(1, np.int64), list(range(min(size, self.tokenizer.vocab_size))))
            with suppress(CannotShare):
                [prediction] = self._ask([trial]).predictions
                if prediction.keys() >= set(trial.tokens):
                    return size
        return 0

    def _ask(self, batch: Sequence[Question]) -> Exchange:
        """The answer to one request, for prompts that want the same tokens."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": [question.prompt.tolist() for question in batch],
                "max_tokens": 1,
                "temperature": 0,
                "seed": self._seed,
                "repetition_penalty": 1.0,  # a server may have another default, and then another most likely token
                "logprobs": 1,
                "logprob_token_ids": batch[0].tokens,
                "return_tokens_as_token_ids": True,
            }
        ).encode()
        answer, received = self._post(body)
        choices = self._choices(answer, len(batch))
        try:
            tops = [choice["logprobs"]["top_logprobs"][0].items() for choice in choices]
            predictions = [{int(name.removeprefix("token_id:")): float(value) for name, value in top} for top in tops]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):  # stock asks, and says what is missing
            raise CannotShare(
                "the server does not return the log-probabilities of chosen tokens, as vLLM does from 0.26 on"
            ) from None
        return Exchange(predictions, len(body), received)

    def _post(self, body: bytes) -> tuple[Any, int]:
        """The server's answer and its bytes, asked for `max_retries` times where the connection or the server fails."""
        headers = {**self.header, "Content-Type": "application/json"}
        for attempt in range(max(1, self.max_retries)):
            if attempt:
                time.sleep(min(10, 2 ** (attempt - 1)))
            try:
                response = self._session.post(
                    self.base_url, data=body, headers=headers, verify=self.verify_certificate, timeout=self.timeout
                )
                if response.ok:
                    return response.json(), len(response.content)
                problem: requests.RequestException = requests.HTTPError(_message(response), response=response)
                if response.status_code < 500 and response.status_code != 429:
                    break
            except requests.RequestException as error:
                problem = error
        status = _status(problem)
        if status == 404:
            raise _wrong_model(self.base_url, self.model, self._served)
        if status in (400, 422):  # most servers: a field that they do not know
            raise CannotShare(f"the server refuses such requests ({problem})")
        raise self._failed(problem)

    def _failed(self, error: BaseException) -> ModelError:
        if isinstance(error, NOT_JSON):
            return self._unusable(f"is not JSON ({_in_a_line(getattr(error, 'doc', None) or error)})")
        status = _status(error)
        if status is not None and status < 500:
            return ModelError(f"The server at {self.base_url} refuses requests: {_reason(error)}.")
        return ModelError(
            f"The server at {self.base_url} stopped answering after {self._requests_answered} requests "
            f"({_reason(error)}): start it again and repeat the command; --use_cache keeps the answers for that."
        )

    def _not_completions(self, answer: Any) -> ModelError:
        return self._unusable(f"does not hold one choice for each prompt ({_in_a_line(answer)})")

    def _unusable(self, what: str) -> ModelError:
        return ModelError(
            f"The server at {self.base_url} sent an answer that {what}: make sure that base_url in --model_args is its "
            "/v1/completions, and repeat the command; --use_cache keeps the answers for that."
        )


def _batches(asked: Sequence[Question], size: int) -> list[list[int]]:
    """Places of questions that want the same tokens, in order, at most `size` together."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, question in enumerate(asked):
        places[tuple(question.tokens)].append(place)
    return sorted(alike[start : start + size] for alike in places.values() for start in range(0, len(alike), size))


def _served_models(base_url: str, header: dict[str, str] | None, verify: bool) -> list[str]:
    """The models of a vLLM server; none of a server that does not tell, or takes any name. Raises without a server."""
    url = base_url.removesuffix("/").removesuffix("/completions") + "/models"
    header = header or {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    try:
        response = requests.get(url, headers=header, verify=verify, timeout=20)
    except requests.RequestException as error:
        raise ModelError(
            f"There is no server at {base_url} ({_reason(error)}): start it, or correct base_url in --model_args."
        ) from error
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return [str(model["id"]) for model in response.json()["data"] if model.get("owned_by") == "vllm"]
    return []


def _wrong_model(base_url: str, model: str | None, served: Sequence[str]) -> ModelError:
    has = f"; it serves {', '.join(map(repr, served))}" if served else ""
    return ModelError(
        f"The server at {base_url} does not serve the model {model!r}{has}: correct model or base_url in --model_args."
    )


def _message(response: requests.Response) -> str:
    """Status and the server's own words, in one line."""
    words: Any = response.text
    with suppress(ValueError, AttributeError):  # plain text, or an error that is itself the message
        words = response.json()
        words = words.get("error", words)
        words = words.get("message", words)
    return f"status {response.status_code}, {_in_a_line(words)}"


def _status(error: BaseException) -> int | None:
    return getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException) -> str:
    """The innermost cause, which is the one that says what happened: connection refused, name not known."""
    if isinstance(error, requests.Timeout | asyncio.TimeoutError):
        return "no answer in time"
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return _in_a_line(getattr(error, "strerror", None) or error) or type(error).__name__


def _in_a_line(words: Any) -> str:
    return " ".join(str(words).split())[:200]
