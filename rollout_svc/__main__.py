"""Run one replica of the sampler: `python -m rollout_svc`. Settings: MARLAAS_ROLLOUT_…, see `settings.py`."""

from common.runtime.service import Running, run_service
from rollout_svc.settings import RolloutSettings


async def main(running: Running[RolloutSettings]) -> None:
    """Serve until cancelled."""
    from rollout_svc.replica import serve

    await serve(running)


if __name__ == "__main__":
    run_service(RolloutSettings, main)
