"""What may be written into files: values without keys, tokens and passwords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SECRETS = frozenset(
    {
        "access_key", "access_token", "api_key", "api_token", "apikey", "auth", "auth_token", "authorization",
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "bearer", "bearer_token", "client_secret",
        "cookie", "cookies", "credential", "credentials", "header", "headers", "hf_token", "key", "openai_api_key",
        "passphrase", "password", "private_key", "secret", "secret_key", "session_token", "token", "use_auth_token",
        "watsonx_credentials",
    }
)  # fmt: skip
"""Exactly these names, however they are written: `add_bos_token` and `prefix_token_id` change scores."""

_USER_IN_URL = re.compile(r"(?<=://)[^/\s]+@")
_QUERY_IN_URL = re.compile(r"(?<=[?&])([\w-]+)=([^&#\s]*)")


def public(value: Any, left_out: list[Any] | None = None) -> Any:
    """A value without keys, tokens and passwords: what may be written into a file. These go to `left_out`."""
    left_out = [] if left_out is None else left_out
    if isinstance(value, Mapping):
        secret = {key for key in value if str(key).lower().replace("-", "_") in SECRETS}
        left_out.extend((str(key), value[key]) for key in sorted(secret, key=str))
        return {key: public(one, left_out) for key, one in value.items() if key not in secret}
    if isinstance(value, (list, tuple)):
        return [public(one, left_out) for one in value]
    if not isinstance(value, str) or "://" not in value:
        return value
    query = dict(_QUERY_IN_URL.findall(value))
    hidden = [*_USER_IN_URL.findall(value), *(query[key] for key in query if key not in public(query))]
    left_out.extend(hidden)
    for text in hidden:
        value = value.replace(text, "")
    return value
