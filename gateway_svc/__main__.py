"""Run one replica of the gateway: `python -m gateway_svc`. Settings: MARLAAS_GATEWAY_…, see `settings.py`."""

from common.runtime.service import Running, run_service
from gateway_svc.settings import GatewaySettings


async def main(running: Running[GatewaySettings]) -> None:
    """Serve until cancelled."""
    from gateway_svc.service import serve

    await serve(running)


if __name__ == "__main__":
    run_service(GatewaySettings, main)
