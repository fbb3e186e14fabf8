"""Clients of OpenAI's own library before a gateway."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from openai import AsyncOpenAI

Opened = Callable[..., AbstractAsyncContextManager[AsyncOpenAI]]


def openai(address: str, *, tenant: str | None = "acme") -> AsyncOpenAI:
    query = {} if tenant is None else {"tenant": tenant}
    return AsyncOpenAI(base_url=f"{address}/v1", api_key="mk-none", default_query=query, max_retries=0, timeout=60)
