"""Who may do what by OpenAI's routes: keys of each role, of another tenant, and those that do not count."""

from typing import Any

import httpx

from tests.gateway.openai.routes import HELLO, ROWS
from tests.support.gateway.deltas import Part, Source, deltas
from tests.support.gateway.entering import entering, with_keys
from tests.support.gateway.serving import client, gateway
from tests.support.keyed import Keyed
from tests.support.rollout.replicas import Replica
from tests.support.scheduler.stages import World

OWN = {"/v1/models", "/v1/fine_tuning/jobs", "/v1/files"}
"""Lists, in which another tenant finds its own."""
OF_NOBODY = {"/v1/fine_tuning/alpha/graders/validate"}


async def test_each_role_may_what_it_may(keyed: Keyed, keyed_world: World) -> None:
    source = Source(lambda _: deltas([Part("a")]))
    async with with_keys(keyed) as (made, keys):
        await keyed_world.run("slow-1", until="accepted")
        async with gateway(made.bus, keyed.url, access=made.access, sampler=source) as address:
            for (method, path), (permitted, body) in ROWS.items():
                for name, key in (keys.invalid | {"foreign": keys.valid["foreign"]}).items():
                    answer = await _tried(address, key, method, path, body)
                    expected = 401 if name != "foreign" else 200 if (path in OWN and method == "GET") or path in OF_NOBODY else 404
                    assert answer.status_code == expected, (name, path, answer.text)
                    assert "slow-1" not in answer.text or path == "/v1/models/slow-1@1" or body is not None, (name, path)
                for name in ("reader", "member", "owner", "admin"):
                    answer = await _tried(address, keys.valid[name], method, path, body)
                    if name in permitted:
                        assert answer.status_code in (200, 404, 409) or (path in OWN and answer.status_code == 400), (
                            name,
                            path,
                            answer.text,
                        )
                    else:
                        assert answer.status_code == 403, (name, path, answer.text)
                        assert answer.json()["error"]["type"] == "permission_error"

    assert source.choices == []  # the task has no version yet


async def _tried(address: str, key: str, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
    async with client(address, key) as door:
        return await door.request(method, path, json=body)


async def test_services_keys_suffice_to_sample(keyed: Keyed, keyed_world: World) -> None:
    """The gateway asks and the replica answers, each with its own key on a server with keys."""
    async with entering(keyed) as made, await keyed.connect("rollout") as bus:
        await made.tenant("acme")
        key = await made.key("acme", "one", "member")
        replica = Replica(bus, "r0")
        replica.start()
        try:
            async with gateway(made.bus, keyed.url, access=made.access) as address:
                body = {"model": "tiny", "messages": HELLO, "max_tokens": 8}
                whole = await _tried(address, key, "POST", "/v1/chat/completions", body)
                streamed = await _tried(address, key, "POST", "/v1/chat/completions", body | {"stream": True})
        finally:
            await replica.stop()

    assert whole.status_code == 200, whole.text
    assert whole.json()["usage"]["completion_tokens"] == 8
    assert streamed.text.endswith("data: [DONE]\n\n")
