"""Order: what one HTTP request asks of samplers, one choice each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import JsonValue

from common.messages.artifacts import AdapterRef
from common.messages.serving import ServedMessage, ServedSampling, ServeRequest
from common.messages.tenancy.access import Key


@dataclass(frozen=True)
class Prompt:
    """Exactly one of `messages`, `text` and `ids` is given."""

    messages: Sequence[ServedMessage] | None = None
    text: str | None = None
    ids: Sequence[int] | None = None
    tools: Sequence[dict[str, JsonValue]] = ()
    parallel_calls: bool = True
    template: dict[str, JsonValue] = field(default_factory=dict)
    param: str = "messages"
    """Field of the request that it is from."""


@dataclass(frozen=True)
class Choice:
    """One continuation of a prompt."""

    prompt: Prompt
    sampling: ServedSampling


@dataclass(frozen=True)
class Target:
    """The model that a request is about: one version, which stays the same until its end."""

    model: str
    """Exact name."""
    tenant: str
    """Whose it is, and who is billed."""
    pool: str
    adapter: AdapterRef | None
    """None: the base model."""
    weight: float = 1.0
    """The tenant's, where requests wait."""


def serve_request(choice: Choice, target: Target, *, request: str, gateway: str, key: Key | None, first_token_by_s: float) -> ServeRequest:
    """The message of a first attempt. `request`: id of the choice."""
    prompt = choice.prompt
    return ServeRequest(
        request=request,
        attempt=0,
        gateway=gateway,
        tenant=target.tenant,
        key=key,
        weight=target.weight,
        pool=target.pool,
        adapter=target.adapter,
        messages=None if prompt.messages is None else list(prompt.messages),
        text=prompt.text,
        ids=None if prompt.ids is None else np.asarray(prompt.ids, dtype="<i4").tobytes(),
        tools=list(prompt.tools),
        parallel_calls=prompt.parallel_calls,
        template=prompt.template,
        sampling=choice.sampling,
        first_token_by_s=first_token_by_s,
    )
