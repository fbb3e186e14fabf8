"""Run one replica of the environment service: `python -m env_svc`. Settings: MARLAAS_ENV_…, see `settings.py`."""

from common.runtime.service import Running, run_service
from env_svc.settings import EnvSettings


async def main(running: Running[EnvSettings]) -> None:
    """Serve until cancelled."""
    from env_svc.replica import serve

    await serve(running)


if __name__ == "__main__":
    run_service(EnvSettings, main)
