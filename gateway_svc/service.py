"""The gateway's process: serves until cancelled, then drains; it is ready while NATS is connected and a scheduler answers."""

import asyncio

import structlog

from common import streams
from common.bus import Bus, NoResponder, TlsFiles
from common.errors import Forbidden, Unavailable
from common.messages import AskDeployment, PoolsAnswer, ReplicaReport
from common.runtime.health import Health
from common.runtime.process import collect_at_rest
from common.runtime.service import Running, report_replica
from common.streams import KIND_HEADER
from gateway_svc.access import Access, HttpKeys, KeyAccess, Nats, OpenAccess
from gateway_svc.http.application import all_families, application
from gateway_svc.http.gateway import Gateway
from gateway_svc.http.server import listener, server
from gateway_svc.openai.models import BaseModels
from gateway_svc.openai.sampling.choices import Replicas, Sampler
from gateway_svc.serving.client import Serving
from gateway_svc.serving.pools import Offers
from gateway_svc.settings import GatewaySettings

REPORTS_S = 5.0
"""Maximum seconds at shutdown to wait until reports of ended requests are stored."""
FEW_CONNECTIONS = 100
"""Number of connections below which the process counts as idle."""

log = structlog.get_logger()
EVERY_S = 2.0
ANSWER_S = 5.0


async def serve(running: Running[GatewaySettings]) -> None:
    """Serve until cancelled. Raises: Fatal if it cannot listen."""
    settings = running.settings
    if settings.nats_creds is None:
        return await serve_with(running, OpenAccess(running.bus, settings.nats_url))
    tls = TlsFiles(settings.nats_ca, settings.nats_cert, settings.nats_key)
    nats = Nats(settings.nats_url, f"gateway-{settings.replica}", insecure=settings.nats_insecure, tls=tls)
    access = KeyAccess(HttpKeys(running.bus), nats)
    async with asyncio.TaskGroup() as runners:
        following = runners.create_task(access.run())
        try:
            await serve_with(running, access)
        finally:
            following.cancel()
    return None


async def serve_with(running: Running[GatewaySettings], access: Access, sampler: Sampler | None = None) -> None:
    """Serve until cancelled; then refuse new requests and finish those in flight within the drain's time.

    `sampler`: replaces the pools' replicas.
    """
    settings, bus = running.settings, running.bus
    serving = Serving(bus, settings.replica)
    offers = Offers()
    sampler = sampler or Replicas(serving, offers, bus.clock.now_s, settings.first_token_s)
    bases = BaseModels(bus, offers)
    gateway = Gateway(settings, bus, access, running.health, sampler, serving.texts, bases=bases)

    def report() -> ReplicaReport:
        return ReplicaReport(replica=settings.replica, service="gateway", busy=serving.tally.busy)

    http = server(application(gateway, all_families()), settings)
    with listener(settings) as socket:
        log.info("listening", host=settings.host, port=socket.getsockname()[1])
        async with asyncio.TaskGroup() as runners:
            answering = runners.create_task(http.serve(sockets=[socket]))
            readiness = runners.create_task(keep_readiness(bus, running.health, offers))
            others = [
                runners.create_task(serving.run()),
                runners.create_task(gateway.limiter.run()),
                runners.create_task(bases.run()),
                runners.create_task(collect_at_rest(lambda: len(http.server_state.connections) < FEW_CONNECTIONS)),
                runners.create_task(report_replica(bus, report)),
            ]
            try:
                await asyncio.wait([answering])  # unlike awaiting the task, this does not cancel it
            finally:
                readiness.cancel()
                running.health.set_unready("draining")
                await gateway.drain.finish(settings.drain_s)
                http.should_exit = True
                await asyncio.wait([answering])
                await serving.reports.flush(REPORTS_S)
                for other in others:
                    other.cancel()


async def keep_readiness(bus: Bus, health: Health, offers: Offers) -> None:
    """Keep `health` and `offers` up to date until cancelled."""
    while True:
        obstacle = await obstacle_of(bus, offers)
        if obstacle is None and not health.ready:
            health.set_ready()
        elif obstacle is not None and (health.ready or health.detail != obstacle):
            health.set_unready(obstacle)
        await asyncio.sleep(EVERY_S)


async def obstacle_of(bus: Bus, offers: Offers) -> str | None:
    """Description of what keeps the gateway from working; None if it can work."""
    if not bus.is_connected:
        return "NATS is unavailable"
    try:
        answer = await bus.requests.ask(streams.ask(None, "pools"), AskDeployment(), timeout_s=ANSWER_S)
        if answer.headers.get(KIND_HEADER) == PoolsAnswer.kind:
            offers.update(answer.read(PoolsAnswer).pools)
    except NoResponder:
        return "no scheduler answers"
    except (Unavailable, Forbidden) as error:
        return f"the scheduler does not answer: {error}"
    return None
