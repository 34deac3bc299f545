"""local-completions-shared-prefix: the same questions as `vllm-shared-prefix`, to a server over HTTP.

vLLM's `/v1/completions` takes `logprob_token_ids` from version 0.26 on. A server that does not is asked as stock
`local-completions` asks, and one log line says so. What can go wrong with a server ends in one sentence.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

import requests
from aiohttp import ClientError
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI
from requests.adapters import HTTPAdapter

from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.engine import EngineLM
from lm_eval_proca.models.next_tokens import Prediction, Question
from lm_eval_proca.models.sharing import CannotShare, LogLikelihood, TokenizedRequest, logger

FIRST_VERSION = "0.26"
TOKEN = "token_id:"
PATIENCE = 20
"""Seconds to wait for a server that is asked what it serves."""
NO_SERVER = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.InvalidURL,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
)


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
        self._count = threading.Lock()
        self._requests_sent = self._requests_answered = self._bytes_sent = 0

    def _stock(self, requests: list[TokenizedRequest], disable_tqdm: bool, **options: Any) -> list[LogLikelihood]:
        with self._in_a_sentence():
            return super()._stock(requests, disable_tqdm, **options)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        with self._in_a_sentence():
            return super().generate_until(requests, disable_tqdm=disable_tqdm)

    def parse_logprobs(self, outputs: Any, **kwargs: Any) -> list[LogLikelihood]:  # type: ignore[override]
        try:
            return super().parse_logprobs(outputs=outputs, **kwargs)
        except (KeyError, TypeError) as error:
            raise self._without_log_probabilities() from error

    @contextmanager
    def _in_a_sentence(self) -> Iterator[None]:
        """What stock's own requests end in."""
        try:
            yield
        except (requests.RequestException, ClientError, asyncio.TimeoutError) as error:
            raise self._failed(error) from error

    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        if not self.tokenized_requests:
            raise CannotShare("tokenized_requests=False asks to send text, and text cannot be continued by tokens")
        sent, size = self._requests_sent, self._bytes_sent
        batches = _batches(asked, max(1, self._batch_size))
        with ThreadPoolExecutor(max(1, self._concurrent)) as pool:
            answers = {pool.submit(self._ask, [asked[place] for place in places]): places for places in batches}
            try:
                for answer in as_completed(answers):
                    yield from zip(answers[answer], answer.result(), strict=True)
            finally:
                pool.shutdown(cancel_futures=True)
        logger.info(
            f"{self.NAME}: {self._requests_sent - sent} HTTP requests with {len(asked)} prompts, "
            f"{self._bytes_sent - size} bytes sent."
        )

    def _ask(self, batch: Sequence[Question]) -> list[Prediction]:
        """One request for prompts that want the same tokens."""
        answer = self._post(
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
        )
        try:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            found = [choice["logprobs"] for choice in choices]
        except (KeyError, TypeError):
            raise CannotShare("its answers are not those of /v1/completions") from None
        if not all(found):
            raise self._without_log_probabilities()
        try:
            behind = [each["top_logprobs"][0] for each in found]
            return [{int(token.removeprefix(TOKEN)): value for token, value in each.items()} for each in behind]
        except (KeyError, IndexError, TypeError, ValueError):
            raise CannotShare(
                "the server does not return the log-probabilities of chosen tokens, as vLLM does from "
                f"{FIRST_VERSION} on"
            ) from None

    def _post(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The server's answer; three times asked where the connection fails or the server does."""
        body = json.dumps(payload).encode()
        headers = {**self.header, "Content-Type": "application/json"}
        with self._count:
            self._requests_sent += 1
            self._bytes_sent += len(body)
        for attempt in range(1, max(1, self.max_retries) + 1):
            try:
                response = self._session.post(
                    self.base_url, data=body, headers=headers, verify=self.verify_certificate, timeout=self.timeout
                )
                if response.status_code < 500 and response.status_code != 429:
                    break
                problem: Exception = requests.HTTPError(_message(response), response=response)
            except requests.RequestException as error:
                problem = error
            if attempt < self.max_retries:
                threading.Event().wait(min(10, 2 ** (attempt - 1)))
        else:
            raise self._failed(problem)
        if response.status_code == 404:
            raise _wrong_model(self.base_url, self.model, self._served)
        if response.status_code in (400, 422):  # most servers: a field that they do not know
            raise CannotShare(f"the server refuses such requests ({_message(response)})")
        if not response.ok:
            raise self._failed(requests.HTTPError(_message(response), response=response))
        with self._count:
            self._requests_answered += 1
        return response.json()

    def _failed(self, error: Exception) -> ModelError:
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        if status is not None and status < 500:
            return ModelError(f"The server at {self.base_url} refuses requests: {_reason(error)}.")
        return ModelError(
            f"The server at {self.base_url} stopped answering after {self._requests_answered} requests "
            f"({_reason(error)}): start it again and repeat the command; --use_cache keeps the answers for that."
        )

    def _without_log_probabilities(self) -> ModelError:
        return ModelError(
            f"The server at {self.base_url} returns no log-probabilities (logprobs=1), and classification needs them: "
            "start it so that it does, or use a server that has them, as `vllm serve`."
        )


def _batches(asked: Sequence[Question], size: int) -> list[list[int]]:
    """Places of questions that want the same tokens, in order, at most `size` together."""
    batches: list[list[int]] = []
    filling: dict[tuple[int, ...], list[int]] = {}
    for place, question in enumerate(asked):
        tokens = tuple(question.tokens)
        if len(filling.get(tokens, ())) in (0, size):
            filling[tokens] = []
            batches.append(filling[tokens])
        filling[tokens].append(place)
    return batches


def _served_models(base_url: str, header: dict[str, str] | None, verify: bool) -> list[str]:
    """The models of a vLLM server; none of a server that does not tell, or takes any name. Raises without a server."""
    url = base_url.removesuffix("/").removesuffix("/completions") + "/models"
    header = header or {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    try:
        models = requests.get(url, headers=header, verify=verify, timeout=PATIENCE).json()["data"]
        return [str(model["id"]) for model in models if model.get("owned_by") == "vllm"]
    except NO_SERVER as error:
        raise ModelError(
            f"There is no server at {base_url} ({_reason(error)}): start it, or correct base_url in --model_args."
        ) from error
    except (requests.RequestException, KeyError, TypeError, AttributeError):
        return []


def _wrong_model(base_url: str, model: str | None, served: Sequence[str]) -> ModelError:
    has = f"; it serves {', '.join(map(repr, served))}" if served else ""
    return ModelError(
        f"The server at {base_url} does not serve the model {model!r}{has}: correct model or base_url in --model_args."
    )


def _message(response: requests.Response) -> str:
    """Status and the server's own words, in one line."""
    try:
        body = response.json()
        error = body.get("error", body)
        words = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        words = response.text
    return f"status {response.status_code}, {' '.join(str(words).split())[:200]}"


def _reason(error: BaseException) -> str:
    """The innermost cause, which is the one that says what happened: connection refused, name not known."""
    if isinstance(error, requests.Timeout | asyncio.TimeoutError):
        return "no answer in time"
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    words = " ".join((getattr(error, "strerror", None) or str(error)).split())
    return words[:200] or type(error).__name__
