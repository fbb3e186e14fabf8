"""The gateway's process: serves until it is cancelled, then drains."""

import asyncio

import structlog

from common.runtime.service import Running
from gateway_svc.access import Access
from gateway_svc.connections import OpenAccess
from gateway_svc.http.application import all_families, application
from gateway_svc.http.gateway import Gateway
from gateway_svc.http.server import listener, server
from gateway_svc.readiness import keep_readiness
from gateway_svc.settings import GatewaySettings

log = structlog.get_logger()


async def serve(running: Running[GatewaySettings]) -> None:
    """Serve until cancelled. Raises: Fatal when it cannot listen."""
    await serve_with(running, OpenAccess(running.bus, running.settings.nats_url))


async def serve_with(running: Running[GatewaySettings], access: Access) -> None:
    """Serve until cancelled; then no request is taken, and those in flight end within the drain's time."""
    settings = running.settings
    gateway = Gateway(settings, running.bus, access, running.health)
    http = server(application(gateway, all_families()), settings)
    with listener(settings) as socket:
        log.info("listening", host=settings.host, port=socket.getsockname()[1])
        async with asyncio.TaskGroup() as runners:
            serving = runners.create_task(http.serve(sockets=[socket]))
            readiness = runners.create_task(keep_readiness(running.bus, running.health))
            try:
                await asyncio.wait([serving])  # which, unlike awaiting it, does not cancel it
            finally:
                readiness.cancel()
                running.health.set_unready("draining")
                await gateway.drain.finish(settings.drain_s)
                http.should_exit = True
                await asyncio.wait([serving])
