"""Connections on behalf of callers, without servers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.access.keys import Kind, Seed, digest_of, http_key
from gateway_svc import access
from gateway_svc.access import HttpKeys, KeyAccess, Nats
from tests.support.waiting import eventually

TEXT = http_key(Seed.new(Kind.USER))
KEY = SimpleNamespace(digest=digest_of(TEXT), token="a.b.c", tenant="acme", role="member", key="U", ends=None)


class Keys:
    """One key, which is valid."""

    def on_removal(self, call: object) -> None:
        """Nothing is ever revoked."""

    def find(self, digest: str) -> object:
        return KEY if digest == KEY.digest else None


async def test_connection_that_fails_unexpectedly_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    async def connect(*given: object, **_: object) -> Any:
        tried.append(given)
        raise RuntimeError("an error that nobody knows of")

    def credentials(*_: object) -> object:
        return None

    monkeypatch.setattr(access, "Bus", SimpleNamespace(connect=connect))
    monkeypatch.setattr(access, "credentials_of", credentials)
    opened = KeyAccess(cast(HttpKeys, Keys()), Nats("nats://absent", "gateway"))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            async with opened.entered(TEXT):
                pass
        await eventually(lambda: opened.connections == 0, 60)

    assert len(tried) == 2
