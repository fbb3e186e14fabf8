"""The dashboard with HTTP keys that the operator made, on a NATS that refuses what a key's role does not permit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx

from common.runtime.health import Health
from common.runtime.service import Running
from gateway_svc.service import serve
from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from marlaas.tenancy import keys
from tests.gateway.dashboard.site import csrf_of
from tests.support.gateway.entering import Entering, entering
from tests.support.gateway.serving import client
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World
from tests.support.waiting import at_work, eventually, eventually_equals


async def test_session_of_a_key_is_taken_by_another_replica_until_the_key_is_revoked(keyed: Keyed, keyed_world: World) -> None:
    async with entering(keyed) as made:
        await made.tenant("acme")
        owner, reader = await made.key("acme", "owner", "owner"), await made.key("acme", "reader", "reader")
        async with replica(made, keyed) as first, replica(made, keyed) as second:
            page = await first.get("/login")
            logged_in = [await first.post("/login", data={"csrf": csrf_of(page.text), "key": key}) for key in (owner, reader)]
            cookies = [{"Cookie": answer.headers["set-cookie"].partition(";")[0]} for answer in logged_in]

            paths = ("/tasks", "/new", "/timeline", "/compare", "/stages", "/usage", "/files", "/webhooks", "/keys")
            statuses = [[(await second.get(path, headers=cookie)).status_code for path in paths] for cookie in cookies]
            assert statuses == [[200] * 9, [200, 403, 200, 200, 200, 403, 200, 403, 403]]
            assert owner not in str(logged_in[0].headers)
            assert "also ends" not in page.text

            async def asked() -> int:
                return (await second.get("/tasks", headers=cookies[1])).status_code

            await keys.revoke_key(made.operator, "acme", "reader")
            await eventually_equals(asked, 303, 30)


@asynccontextmanager
async def replica(made: Entering, keyed: Keyed) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the dashboard of one more gateway."""
    settings = GatewaySettings(port=servers.free_port(), drain_s=1.0, nats_url=keyed.url, nats_creds=keyed.keys.credentials("gateway"))
    async with (
        at_work(serve(Running(settings, made.bus, health := Health()))),
        client(f"http://127.0.0.1:{settings.port}/ui") as found,
    ):
        await eventually(lambda: health.ready, 60)
        yield found
