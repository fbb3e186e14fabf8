"""Run one replica of the gateway: `python -m gateway_svc`. Settings: MARLAAS_GATEWAY_…, see `settings.py`."""

from asyncio import AbstractEventLoop

from common.runtime.service import Running, run_service
from gateway_svc.settings import GatewaySettings


async def main(running: Running[GatewaySettings]) -> None:
    """Serve until cancelled."""
    from gateway_svc.service import serve

    await serve(running)


def new_loop() -> AbstractEventLoop:
    """Event loop of uvloop: asyncio's costs 1.5 times as much per message and event, and twice as much per connection."""
    import uvloop

    return uvloop.new_event_loop()


if __name__ == "__main__":
    run_service(GatewaySettings, main, new_loop=new_loop)
